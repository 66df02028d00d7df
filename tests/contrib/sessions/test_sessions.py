"""What a dead run left in the server is ended whatever role it has; and where that is not allowed, somebody says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from django.db import connection, connections
from django.db.models.functions import Now

from jobs.contrib.checks import system as checks
from jobs.contrib.sessions import zombies
from jobs.contrib.sessions.zombies import end_backends
from jobs.models import Job
from jobs.store import databases
from tests.helpers.rows import make
from tests.helpers.servers import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

#: Two that log in, and are members of the one that owns the rights.
APP, OWN, OTHER = "jobs_test_app", "jobs_test_own", "jobs_test_other"


@pytest.fixture(autouse=True)
def _roles(monkeypatch):
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL only")
    monkeypatch.setattr(zombies, "_told", set())
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {APP}; GRANT USAGE ON SCHEMA public TO {APP}")
        cursor.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {APP}")
        cursor.execute(f"CREATE ROLE {OWN} LOGIN IN ROLE {APP}; CREATE ROLE {OTHER} LOGIN IN ROLE {APP}")
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"DROP OWNED BY {APP}, {OWN}, {OTHER}; DROP ROLE {APP}, {OWN}, {OTHER}")


def logged_in(role: str, assumes: str | None = None) -> closing:
    settings = {**connection.settings_dict, "USER": role}
    settings["OPTIONS"] = {**settings["OPTIONS"], **({"assume_role": assumes} if assumes else {})}
    made: Any = type(connections["default"])(settings, "default")
    made.inc_thread_sharing()
    return closing(made)


@contextmanager
def this_process(role: str, assumes: str | None = None) -> Iterator[None]:
    """Its connection is that of this role."""
    before = connections["default"]
    with logged_in(role, assumes) as own:
        connections["default"] = own
        try:
            yield
        finally:
            connections["default"] = before


@contextmanager
def left_behind(role: str, assumes: str | None = None) -> Iterator[tuple[Job, Any]]:
    """A run that is dead, and its transaction that is open."""
    with logged_in(role, assumes) as zombie:
        zombie.ensure_connection()
        zombie.set_autocommit(False)
        with zombie.cursor() as cursor:
            cursor.execute("SELECT 1")
        job = make("running", backend=zombie.connection.info.backend_pid)
        Job.objects.filter(pk=job.pk).update(started_at=Now())
        yield job, zombie
        zombie.close()


@pytest.mark.parametrize("assumes", [None, APP], ids=["plain", "assume_role"])
def test_it_is_ended_whatever_role_its_login_takes_on(assumes):
    with left_behind(OWN, assumes) as (job, zombie), this_process(OWN, assumes):
        end_backends([(job.pk, job.lease)], "default")
        wait_for(lambda: not zombie.is_usable(), 5, "it was ended")
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT current_user")
            assert cursor.fetchone() == (assumes or OWN,), "and this session is what it was"


def test_that_of_another_login_is_told_of_with_the_cure(caplog):
    with left_behind(OTHER) as (job, zombie), this_process(OWN):
        for _ in range(2):
            end_backends([(job.pk, job.lease)], "default")
        assert zombie.is_usable()
    [line] = [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "zombie_kept"]
    assert OTHER in line
    assert f"GRANT pg_signal_backend, pg_read_all_stats TO {OWN}" in line


def test_the_cure_cures():
    with connection.cursor() as cursor:
        cursor.execute(f"GRANT pg_signal_backend, pg_read_all_stats TO {OWN}")
    with left_behind(OTHER) as (job, zombie), this_process(OWN):
        assert checks.ask_databases(databases=["default"]) == []
        end_backends([(job.pk, job.lease)], "default")
        wait_for(lambda: not zombie.is_usable(), 5, "it was ended")


def test_that_of_a_superuser_stays_and_stops_nobody(caplog):
    with left_behind(connection.settings_dict["USER"]) as (job, zombie), left_behind(OWN) as (own, gone):
        with this_process(OWN):
            end_backends([(job.pk, job.lease), (own.pk, own.lease)], "default")
        assert zombie.is_usable()
        wait_for(lambda: not gone.is_usable(), 5, "it was ended")


@pytest.mark.parametrize("state", ["running", "succeeded"])
def test_a_check_names_the_logins_that_are_out_of_reach(state):
    """Those of the jobs that run, and that ran last; without a word about others, such as those of web processes."""
    with logged_in(OTHER) as web, left_behind(OTHER) as (job, _), left_behind(OWN):
        web.ensure_connection()
        if state == "succeeded":
            Job.objects.filter(pk=job.pk).update(state=state, finished_at=Now())
        with this_process(OWN):
            [message] = checks.ask_databases(databases=["default"])
            assert message.id == "jobs.W031"
            assert OTHER in message.msg
            assert OWN in message.hint
            assert checks.ask_databases(databases=[]) == [], "manage.py check asks no database by itself"
            Job.objects.all().delete()
            assert checks.ask_databases(databases=["default"]) == []


def test_only_the_connection_of_the_run_that_is_over_is_ended():
    """The job may have another run by now, whose connection is another one or the same."""
    with databases.apart("default") as other:
        other.ensure_connection()
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT 1")
        job = make("running", lease=2, backend=other.connection.info.backend_pid)
        Job.objects.filter(pk=job.pk).update(started_at=Now())
        end_backends([(job.pk, 1)], "default")
        assert other.is_usable()
        end_backends([(job.pk, 2)], "default")
        wait_for(lambda: not other.is_usable(), 5, "it was ended")
        other.close()
