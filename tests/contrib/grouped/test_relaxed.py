"""A commit that need not be on the disk yet: ``synchronous_commit=False``, ``JOBS["SYNCHRONOUS_COMMIT"]``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from celery import current_app, shared_task
from django.db import connection, transaction

from jobs.contrib.psycopg3.session import Preparing
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job, Node
from proof.guards import OUT, taken_out
from tests.conftest import server
from tests.faults.database import AWAY, ServerTemplate
from tests.faults.process import Process
from tests.helpers import driver
from tests.helpers.harness import Worker, deliver, effects
from tests.helpers.servers import Postgres, wait_for
from tests.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def write(key):
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(synchronous_commit=False)
def relaxed(key):
    write(key)
    return key


@shared_task
def synced(key):
    write(key)


@shared_task(synchronous_commit=False)
def hooks(key):
    write(key)
    transaction.on_commit(lambda: None)


@shared_task(synchronous_commit=False)
def calls(key):
    write(key)
    synced.delay(f"{key} called")


@shared_task(synchronous_commit=False)
def acts(key, path):
    write(key)
    transaction.on_commit(Path(path).touch)


@shared_task(synchronous_commit=False)
def takes_back(key):
    """Its hook goes with the savepoint."""
    write(key)
    try:
        with transaction.atomic():
            transaction.on_commit(lambda: None)
            raise ValueError
    except ValueError:
        pass


@pytest.fixture
def at_commit(node):
    """What the setting is at the commit of each effect, by its key; nothing where there is no such setting."""
    if connection.vendor != "postgresql":
        yield dict
        return
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE seen_at_commit (key text, value text)")
        cursor.execute(
            "CREATE FUNCTION see_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "INSERT INTO seen_at_commit VALUES (NEW.key, current_setting('synchronous_commit')); RETURN NULL; END $$"
        )
        cursor.execute(
            "CREATE CONSTRAINT TRIGGER see_at_commit AFTER INSERT ON tests_effect DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION see_at_commit()"
        )

    def seen():
        with connection.cursor() as cursor:
            cursor.execute("SELECT key, value FROM seen_at_commit")
            return dict(cursor.fetchall())

    yield seen
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION see_at_commit CASCADE")
        cursor.execute("DROP TABLE seen_at_commit")


def expected(**values):
    return values if connection.vendor == "postgresql" else {}


def test_the_commit_of_the_completion_need_not_wait_and_the_next_one_does(at_commit):
    for task in (relaxed, synced, relaxed):
        assert deliver(task.delay(task.name.rpartition(".")[2]))[0] == "SUCCESS"
    write("beside")
    assert at_commit() == expected(relaxed="off", synced="on", beside="on")
    assert effects() == {"relaxed": 2, "synced": 1, "beside": 1}
    assert set(Job.objects.values_list("state", "error")) == {("succeeded", None)}


def test_it_costs_no_round_trip_more(node, monkeypatch):
    driver.prepares()
    if connection.vendor != "postgresql":
        pytest.skip("there is no such setting")
    sent: list[str] = []
    send = Preparing._send
    monkeypatch.setattr(Preparing, "_send", lambda session, sql: [sent.append(sql), send(session, sql)][1])
    for task in (synced, relaxed, synced, relaxed):
        deliver(task.delay("a"))
    for _, last in zip(range(2), reversed(sent), strict=False):
        assert (last.split()[0], last.split()[-1]) == ("EXECUTE", "COMMIT")
    # Each of the two was prepared once.
    assert [sql.split()[0] for sql in sent if "DISCARD" not in sql] == ["PREPARE", "EXECUTE"] * 2 + ["EXECUTE"] * 2


def test_what_follows_the_commit_must_not_outlive_it(at_commit):
    """Hooks, calls and events; a hook that was rolled back with its savepoint follows nothing."""
    for task in (hooks, calls, takes_back):
        assert deliver(task.delay(task.name.rpartition(".")[2]))[0] == "SUCCESS"
    assert at_commit() == expected(hooks="on", calls="on", takes_back="off")


def test_a_link_must_not_outlive_the_commit(at_commit):
    assert deliver(relaxed.apply_async(("linked",), link=synced.s()))[0] == "SUCCESS"
    assert at_commit() == expected(linked="on")


def test_a_fence_that_does_not_hold_commits_nothing(node):
    from tests.helpers.harness import claim, run

    job = claim(relaxed.delay("a").id)
    Job.objects.filter(pk=job.pk).update(lease=2)
    assert run(job)[0] != "SUCCESS"
    assert effects() == {}


def test_the_setting_is_for_all_and_a_task_may_say_otherwise(settings, declare):
    settings.JOBS = {**settings.JOBS, "SYNCHRONOUS_COMMIT": False}
    assert not declare().is_synced
    assert declare(synchronous_commit=True).is_synced
    # Where it would not be safe it is not done.
    assert declare(atomic=False).is_synced
    assert declare(lock="k").is_synced
    assert declare(durable=True).is_synced
    assert current_app.tasks["jobs.send"].is_synced


def test_it_is_a_bool(settings):
    from jobs.conf import problems

    settings.JOBS = {**settings.JOBS, "SYNCHRONOUS_COMMIT": 0}
    assert problems() == ["JOBS['SYNCHRONOUS_COMMIT'] must be True or False, not 0."]


async def awaits():
    pass


@pytest.mark.parametrize(
    "options",
    [{"atomic": False}, {"durable": True}, {"lock": "k"}, {"body": awaits}],
    ids=lambda options: next(iter(options)),
)
def test_what_its_commit_does_not_undo_is_refused_at_the_declaration(declare, options):
    with pytest.raises(TypeError, match="synchronous_commit=False and .* do not go together: .*leave"):
        declare(synchronous_commit=False, **options)


@pytest.fixture(scope="module")
def template(django_db_blocker):
    with django_db_blocker.unblock():
        return ServerTemplate(server(Postgres, __name__))


@pytest.mark.servers
@pytest.mark.timeout(300)
@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "unguarded"])
def test_a_crash_takes_back_nothing_that_was_followed(has_guard, template, tmp_path, django_db_blocker):
    """A guard of the model ``ownership``: without it the effect is gone that something outside has followed."""
    guard = OUT["ownership", "a synchronous commit where something follows"]
    with django_db_blocker.unblock(), template.copy(tmp_path) as database, taken_out(guard, has_guard):
        worker_state.node = Node.objects.create(hostname="here", pid=1).pk
        _pause_the_wal_writer()
        assert deliver(acts.delay("a", str(tmp_path / "acted")))[0] == "SUCCESS"
        assert (tmp_path / "acted").exists()
        database.kill()
        database.start()
        assert effects() == ({"a": 1} if has_guard else {})


ROUNDS, EACH = 3, 400


@pytest.mark.servers
@pytest.mark.timeout(300)
def test_a_server_that_crashes_forgets_effects_and_completions_together(
    template, tmp_path, django_db_blocker, settings
):
    """And each job that it forgot runs again: no effect is lost, and none is there twice."""
    # A beat waits for the disk, and takes along what was committed before.
    settings.JOBS = {**settings.JOBS, "HEARTBEAT": 2.0, "DEAD_AFTER": 6.0}
    forgotten = 0
    with django_db_blocker.unblock(), template.copy(tmp_path) as database:
        keys = [f"{number}" for number in range(ROUNDS * EACH)]
        relaxed.delay_many([(key,) for key in keys])
        with Worker("-I", __name__):
            for number in range(1, ROUNDS):
                _pause_the_wal_writer()
                wait_for(lambda least=number * EACH: Effect.objects.count() > least, 60, "effects")
                before = _ends()
                database.kill()
                database.start()
                forgotten += len(before - _ends())
                assert_both_or_neither()
            wait_for(_is_done, 120, "all jobs ended")
        assert_both_or_neither()
        assert forgotten, "each commit had waited for the disk"
        assert effects() == dict.fromkeys(keys, 1)
        assert set(Job.objects.values_list("state", flat=True)) == {"succeeded"}


def _pause_the_wal_writer():
    """What is committed stays in the server's memory until somebody waits for the disk."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
        Process(cursor.fetchone()[0]).pause()


def _ends():
    return set(Job.objects.filter(state="succeeded").values_list("pk", "finished_at"))


def assert_both_or_neither():
    """In one statement: the worker goes on."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT count(*) FROM tests_effect), (SELECT count(DISTINCT key) FROM tests_effect), "
            "(SELECT count(*) FROM jobs_job j WHERE state = 'succeeded' AND EXISTS "
            "(SELECT 1 FROM tests_effect WHERE key = result #>> '{}')), "
            "(SELECT count(*) FROM jobs_job WHERE state = 'succeeded')"
        )
        [found] = cursor.fetchall()
    assert len(set(found)) == 1, found


def _is_done():
    try:
        return not Job.objects.exclude(state="succeeded").exists()
    except AWAY:
        connection.close()
        return False
