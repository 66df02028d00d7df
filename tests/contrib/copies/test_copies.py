"""A copy of a database may be changed, and is put back; the original stays, and so does what is no copy of ours."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from django.db import connection

from jobs.contrib.copies.copies import copied
from jobs.contrib.copies.store import MARK
from tests.models import Effect

pytestmark = [
    pytest.mark.database,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "mysql", reason="copies of a database are made on SQLite and PostgreSQL"),
]


def test_a_change_of_a_copy_is_read_and_undone_and_the_original_stays(tmp_path):
    Effect.objects.create(key="kept")
    with copied(tmp_path) as [copy, *_]:
        copy.freeze()
        if connection.vendor == "postgresql":
            copy.execute("UPDATE tests_effect SET key = 'changed'")
        else:
            with closing(sqlite3.connect(copy.name)) as other, other:
                other.execute("UPDATE tests_effect SET key = 'changed'")
        [change] = copy.changes()
        assert (change.model, change.before["key"], change.after["key"]) == (Effect, "kept", "changed")
        copy.restore()
        assert copy.changes() == []
        assert Effect.objects.get().key == "kept"


def admin(sql: str) -> list:
    with connection._nodb_cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []


def test_only_a_copy_of_ours_is_dropped_for_its_name(tmp_path):
    if connection.vendor != "postgresql":
        pytest.skip("on SQLite the copy is a file in a new directory")
    original = connection.settings_dict["NAME"]
    name = f"{original[:50]}_crashtest"
    admin(f'CREATE DATABASE "{name}"')
    there = f"SELECT 1 FROM pg_database WHERE datname = '{name}'"
    try:
        with pytest.raises(RuntimeError, match="which is no copy of"), copied(tmp_path):
            pass
        assert admin(there)
        admin(f"COMMENT ON DATABASE \"{name}\" IS '{MARK.format(original)}'")
        with copied(tmp_path):
            pass
        assert not admin(there)
    finally:
        admin(f'DROP DATABASE IF EXISTS "{name}"')
