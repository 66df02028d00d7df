"""A restored copy runs nothing until somebody adopts it."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction

from jobs.conf import problems
from jobs.contrib.adoption import identity
from jobs.lifecycle import transitions
from jobs.models import Instance, Job, Node
from jobs.store.identity import NotAdopted, check_all
from tests.helpers.harness import Worker, claim, effects, wait_ended
from tests.tasks import effect, noop

pytestmark = pytest.mark.django_db(transaction=True)

#: The copies of one database are made alike on every broker.
on_one_broker = pytest.mark.skipif(settings.CELERY_BROKER_URL != "jobs://", reason="once per database is enough")


@contextmanager
def in_database(name: str) -> Iterator[None]:
    """Point this process, and the workers that it starts, at another database of the same server."""
    database = connection.settings_dict
    before = database["NAME"]
    connections.close_all()
    database["NAME"] = name
    try:
        yield
    finally:
        connections.close_all()
        database["NAME"] = before


@pytest.fixture
def copied() -> Iterator[Callable[[], str]]:
    """Copies the database, and returns the copy's name."""
    original = connection.settings_dict["NAME"]
    copy = f"{original}_copy"

    def copy_database() -> str:
        connections.close_all()
        if connection.vendor == "sqlite":
            with sqlite3.connect(original) as file:
                file.execute("VACUUM INTO ?", [copy])
        else:
            with in_database("postgres"), connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [original])
                cursor.execute(f'CREATE DATABASE "{copy}" TEMPLATE "{original}"')
        return copy

    yield copy_database
    if connection.vendor == "sqlite":
        for path in Path(copy).parent.glob(f"{Path(copy).name}*"):
            path.unlink()
    else:
        with in_database("postgres"), connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{copy}" WITH (FORCE)')


def adopt() -> None:
    """What ``manage.py jobs adopt`` writes."""
    Instance.objects.update(mark=identity.mark_of("default"))


@pytest.mark.slow
@on_one_broker
@pytest.mark.core
def test_a_copy_runs_nothing_until_it_is_adopted(copied):
    with Worker(concurrency=1) as worker:
        wait_ended(noop.delay().id)
        assert worker.stop() == 0
    waiting = effect.delay("mail").id
    with in_database(copied()):
        nodes = Node.objects.count()
        with Worker(concurrency=1, wait=False) as worker:
            assert worker.process.wait(30) == 1
            assert "manage.py jobs adopt" in worker.text()
            assert " ready." not in worker.text()
        job = Job.objects.get(pk=waiting)
        assert (job.state, job.lease) == ("ready", 0)
        assert Node.objects.count() == nodes, "the refused worker left no trace"

        adopt()
        with Worker(concurrency=1):
            wait_ended(waiting)
        assert effects() == {"mail": 1}
    assert Job.objects.get(pk=waiting).state == "ready", "the original was left alone"
    check_all()


@pytest.mark.core
def test_workers_that_start_at_once_mark_a_fresh_database_once():
    """Of workers that disagree, one marks and the others are refused."""
    names = ["a", "a", "a", "b", "b", "b"]
    at_once = threading.Barrier(len(names))
    refused: list[str] = []

    def start(name: str) -> None:
        def mark(alias: str) -> str:
            at_once.wait()
            return name

        try:
            _check_with(mark)
        except NotAdopted:
            refused.append(name)
        finally:
            connections.close_all()

    assert Instance.objects.count() == 0
    threads = [threading.Thread(target=start, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [row] = Instance.objects.all()
    assert sorted(refused) == sorted(name for name in names if name != row.mark)


def _check_with(mark: Any) -> None:
    local.mark = mark
    check_all()


local = threading.local()


@pytest.fixture(autouse=True)
def _marks_of_threads(monkeypatch):
    real = identity.mark_of
    monkeypatch.setattr(identity, "mark_of", lambda alias: getattr(local, "mark", real)(alias))


def test_another_name_in_the_settings_is_another_instance(settings):
    settings.JOBS = {**settings.JOBS, "INSTANCE": "production"}
    check_all()
    check_all()
    settings.JOBS = {**settings.JOBS, "INSTANCE": "staging"}
    with pytest.raises(NotAdopted, match=r"'instance:production'.*'instance:staging'.*manage.py jobs adopt"):
        check_all()
    adopt()
    check_all()
    assert Instance.objects.get().mark == "instance:staging"


def test_a_name_for_the_first_time_is_another_instance_too(settings):
    """A snapshot has the server's identifiers of its original: the new name may be what tells them apart."""
    check_all()
    settings.JOBS = {**settings.JOBS, "INSTANCE": "staging"}
    with pytest.raises(NotAdopted):
        check_all()


@pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite's own")
def test_a_moved_file_is_the_same_database_and_a_copied_one_is_not(tmp_path, monkeypatch):
    def mark_of(path: Any) -> str:
        with in_database(str(path)):
            return identity.mark_of("default")

    first, second, copy = tmp_path / "first", tmp_path / "second", tmp_path / "copy"
    mark = mark_of(first)
    assert mark_of(first) == mark
    shutil.copy2(first, copy)
    first.rename(second)
    (tmp_path / "link").symlink_to(second)
    assert mark_of(second) == mark_of(tmp_path / "link") == mark
    assert mark_of(copy) != mark
    copy.rename(first)
    assert mark_of(first) != mark

    monkeypatch.setattr(identity, "_born", lambda path: None)
    assert mark_of(second).endswith(str(second)), "a system without times of birth"
    assert mark_of(":memory:") == "sqlite:memory"


@pytest.mark.skipif(connection.vendor != "postgresql", reason="PostgreSQL's own")
@pytest.mark.core
def test_a_role_without_privileges_can_tell_the_database():
    with transaction.atomic(), connection.cursor() as cursor:
        mark = identity.mark_of("default")
        cursor.execute("CREATE ROLE somebody")
        cursor.execute("SET LOCAL ROLE somebody")
        assert identity.mark_of("default") == mark
        cursor.execute("RESET ROLE")
        cursor.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        cursor.execute("SET LOCAL ROLE somebody")
        fallback = identity.mark_of("default")
        assert fallback.startswith("postgresql:oids:")
        assert fallback == identity.mark_of("default")
        transaction.set_rollback(True)


@pytest.mark.parametrize("subcommand", ["rescue", "prune"])
@pytest.mark.parametrize("once", [[], ["--once"]])
def test_maintenance_refuses_a_copy(subcommand, once):
    node = Node.objects.create(hostname="original", pid=1)
    job = effect.delay("running")
    claim(job.id, node.pk)
    Instance.objects.create(mark="another")
    with pytest.raises(CommandError, match="manage.py jobs adopt"):
        call_command("jobs", subcommand, *once)
    assert Job.objects.get().state == "running"


def test_maintenance_marks_a_fresh_database():
    call_command("jobs", "prune", "--once", stdout=StringIO())
    assert Instance.objects.get().mark == identity.mark_of("default")


@pytest.mark.slow
def test_a_worker_whose_database_becomes_a_copy_stops():
    with Worker(concurrency=1) as worker:
        Instance.objects.update(mark="another")
        transitions.write_death(worker.node.pk, "default")
        assert worker.process.wait(60) is not None
        assert (
            "the supervisor is gone, this worker stops: the database 'default' is marked as 'another'" in worker.text()
        )


def test_an_instance_has_a_name(settings):
    settings.JOBS = {"INSTANCE": ""}
    assert "a name of at most 200 characters" in problems()[0]
