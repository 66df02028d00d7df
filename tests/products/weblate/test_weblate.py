"""Weblate from the index, with the lines of our install page: its flows leave what they leave with stock Celery.

It needs Python 3.12 or newer, git with its daemon, PostgreSQL and Redis. On Debian its wheels are built with
``libcairo2-dev libgirepository1.0-dev libacl1-dev liblz4-dev libzstd-dev libxxhash-dev libssl-dev pkg-config`` (most
of it for borgbackup, which has no wheel). Pango and GTK come from ``gir1.2-pango-1.0``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import server
from tests.helpers.servers import Postgres, Redis
from tests.products.weblate.product import FLOWS, REQUIREMENT, Site, newer_python

pytestmark = [pytest.mark.slow, pytest.mark.servers, pytest.mark.timeout(1500)]

#: A first component of a project gives it a glossary.
GLOSSARY_IS_MADE = {"a_component_is_added", "another_component_is_translated_by_itself"}


@pytest.fixture(scope="module")
def sites(product, tmp_path_factory) -> Iterator[dict[str, Site]]:
    """An installation with stock Celery, and one with jobs."""
    if shutil.which("git") is None or (python := newer_python()) is None:
        pytest.skip("Weblate needs git, and Python 3.12 or newer")
    postgres: Any = server(Postgres)
    programs = product(REQUIREMENT, on=python).parent
    folder = tmp_path_factory.mktemp("weblate")
    redis = {kind: Redis() for kind in ("stock", "jobs")}
    yield {kind: Site(kind, folder / kind, redis[kind], postgres, programs) for kind in redis}
    for each in redis.values():
        each.stop()


@pytest.fixture(scope="module")
def left(sites) -> dict[str, dict]:
    """What each flow has left, and the errors of its tasks."""
    sites["stock"].migrate()
    sites["jobs"].migrate(template=sites["stock"].database)
    return {kind: site.flows() for kind, site in sites.items()}


@pytest.mark.parametrize("flow", FLOWS)
def test_a_flow_leaves_what_it_leaves_with_stock_celery(left, flow):
    stock, ours = left["stock"][flow], left["jobs"][flow]
    assert "error" not in ours, ours["error"]
    assert ours["left"] == stock["left"]
    # A glossary gets its languages by one task and its repository by another, in any order: Weblate's own race.
    assert ours["failed"] == {} or (flow in GLOSSARY_IS_MADE and ours["failed"] == {"OSError": 1})


def test_audit_names_what_has_to_change(left, sites):
    """Each was looked up in Weblate's source, and is true."""
    said = sites["jobs"].audit()
    places = {(each["where"].rpartition("/weblate/")[2].partition(":")[0], each["kind"]) for each in said}
    assert places == {
        ("django_celery_beat", "differs"),
        ("api/views.py", "differs"),
        ("glossary/tasks.py", "differs"),
        ("trans/models/component.py", "differs"),
        ("trans/tasks.py", "differs"),
        ("utils/celery.py", "differs"),
        ("wladmin/views.py", "needless"),
    }
