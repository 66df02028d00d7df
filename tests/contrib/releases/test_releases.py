"""A worker says at its start that something is installed with which jobs was not tested."""

from __future__ import annotations

import ast
import re

import pytest
from django.db import connections

from jobs.contrib.checks import system as checks
from jobs.contrib.releases import checks as releases
from jobs.contrib.releases import private_names
from tests.helpers.checked import ids, worker
from tests.helpers.harness import ROOT

pytestmark = pytest.mark.usefixtures("only_their_own_tasks")


def test_a_worker_does_not_start_without_a_private_name(monkeypatch):
    monkeypatch.setattr(private_names, "PRIVATE", "billiard.pool:Worker.gone self | pool.py: something")
    assert ids(checks.for_worker(worker())) == ["jobs.E018"]


def test_the_releases_that_workers_take_for_tested_are_those_of_the_combinations():
    """``noxfile.py`` says in which combinations the tests are run."""
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    [made] = [
        node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMBINATIONS"
    ]
    combinations = ast.literal_eval(made.value).values()
    for name, tested in releases.TESTED.items():
        assert {each[name] for each in combinations} == {*tested}, name


def test_a_worker_on_another_release_says_so(monkeypatch):
    monkeypatch.setattr(releases, "TESTED", {"celery": ["5.4"]})
    assert ids(checks.for_worker(worker())) == ["jobs.W022"]


def test_servers_that_were_tested_are_debians_and_those_of_the_combinations():
    named = re.findall(r'"PostgreSQL": "(\d+)"', (ROOT / "noxfile.py").read_text())
    assert {15, *map(int, named)} == {*releases.SERVERS}


@pytest.mark.database
@pytest.mark.django_db
def test_a_worker_on_another_server_says_so(monkeypatch):
    """The supervisor asks: the worker's main process holds no connection when it forks."""
    assert checks.ask_databases(databases=["default"]) == []
    monkeypatch.setattr(releases, "SERVERS", (9,))
    assert checks.for_worker(worker()) == []
    found = checks.ask_databases(databases=["default"])
    assert ids(found) == (["jobs.W022"] if connections["default"].vendor == "postgresql" else [])
    assert all("PostgreSQL 9" in message.hint for message in found)
