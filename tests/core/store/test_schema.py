"""What is done after Django has made the tables."""

from importlib import import_module

import pytest
from django.apps import apps
from django.core.management.sql import emit_post_migrate_signal
from django.db import connection, transaction

from jobs import store
from jobs.conf import conf

pytestmark = pytest.mark.django_db


@pytest.mark.skipif(connection.vendor == "mysql", reason="MariaDB commits at each change of a schema")
@pytest.mark.parametrize("about", [{}, {"plan": [], "apps": apps}], ids=["flush", "migrate"])
def test_a_database_that_needs_nothing_more_may_be_in_a_transaction(about):
    """SQLite's schema editor refuses one, and a project's tests may flush, or migrate, in theirs."""
    with transaction.atomic():
        emit_post_migrate_signal(0, False, "default", **about)


def options(table: str) -> dict[str, float]:
    """What PostgreSQL's autovacuum does otherwise with a table."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT unnest(reloptions) FROM pg_class WHERE oid = %s::regclass", [table])
        return {name: float(value) for name, value in (row[0].split("=") for row in cursor.fetchall())}


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL vacuums by itself")
def test_old_rows_are_vacuumed_before_they_are_a_fifth():
    migration = import_module("jobs.migrations.0001_initial")
    live = "jobs_job_live" if store.of("default").is_divided else "jobs_job"
    tuned = [live, *migration.TUNED[1:]]
    for table in tuned:
        found = options(table)
        for what in ("vacuum", "analyze"):
            dead = found[f"autovacuum_{what}_threshold"] + found[f"autovacuum_{what}_scale_factor"] * 11_000_000
            assert dead < 250_000, "of 11 million; by default 2.2 million"
    with connection.schema_editor() as editor:
        migration.untune(None, editor)
        assert not any(map(options, tuned))
        migration.tune(None, editor)
    assert options(live) == migration.AUTOVACUUM


def test_the_table_of_jobs_is_divided_only_where_a_project_says_so():
    """No foreign key of a project may point at a divided one, and nothing undoes it."""
    wanted = getattr(conf(), "HISTORY_BY_DAY", False)
    assert store.of("default").is_divided == (connection.vendor == "postgresql" and wanted)
