"""Two runs meet at every step: what depends on their order is found at its line, and what is right passes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from django.db import connection

from jobs.contrib.locks import locks
from jobs.testing import assert_idempotent
from tests.contrib.crashtest.findings import found_in, line_of
from tests.gallery import MEETING, rows
from tests.helpers.harness import ROOT
from tests.models import Imported

pytestmark = [
    pytest.mark.database,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "mysql", reason="copies of a database are made on SQLite and PostgreSQL"),
]

on_postgresql = pytest.mark.skipif(
    connection.vendor == "sqlite", reason="one body with a transaction waits for the other on SQLite"
)


@pytest.fixture
def row():
    return Imported.objects.create(key="row")


def arguments(name, row):
    if name != "opposite_order":
        return (row.pk,), {}
    other = Imported.objects.create(key="other")
    return (row.pk, other.pk), {"beside": (other.pk, row.pk)}


@on_postgresql
@pytest.mark.slow
@pytest.mark.parametrize("name", MEETING)
def test_each_mistake_is_found_at_its_line(name, row):
    task = getattr(rows, name)
    args, options = arguments(name, row)
    first = found_in(task, *args, **options)[0]
    assert (first.file, first.line) == (str(Path(rows.__file__).relative_to(ROOT)), line_of(task)), first


@pytest.mark.slow
@pytest.mark.parametrize("name", MEETING)
def test_each_corrected_twin_passes(name, row):
    args, options = arguments(name, row)
    assert_idempotent(getattr(rows, f"{name}_mended"), *args, budget=(15, 2.0), **options)


@on_postgresql
def test_without_guard_it_is_found(row, monkeypatch):
    monkeypatch.setattr(rows, "guard", lambda model, pk: contextlib.nullcontext(model.objects.get(pk=pk)))
    [finding] = found_in(rows.stale_row_mended, row.pk)
    assert "guard(" in finding.cure
    assert finding.says == [f"tests.Imported {row.pk}.fence: expected 2, found 1"]


@pytest.mark.slow
def test_without_the_lock_it_is_found(row, monkeypatch):
    assert_idempotent(rows.locked, row.pk)
    monkeypatch.setattr(locks, "lock", lambda key, ttl: contextlib.nullcontext(1))
    assert (
        f"tests.Imported {row.pk}.fence: expected 2, found 1"
        in found_in(rows.locked, row.pk, budget=(40, 60.0))[0].says
    )
