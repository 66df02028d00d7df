"""``manage.py jobs verify``: each rule sees the row that breaks it, and nothing is called broken that recovers."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import store
from jobs.contrib.pauses import pauses
from jobs.contrib.verify.verify import RULES, SHAPES, WINDOW, Report, Unverifiable, verify
from jobs.lifecycle import transitions
from jobs.maintenance import clock
from jobs.maintenance.rescue import Rescue
from jobs.models import Cancellation, Job, Marker, Node
from jobs.store import databases, heartbeats
from tests import tasks
from tests.helpers.harness import Worker, wait_ended
from tests.helpers.plans import plan
from tests.helpers.rows import ERROR, let_heartbeat, make, make_node
from tests.helpers.servers import wait_for
from tests.helpers.verifying import (
    LONG,
    ago,
    assert_seen,
    assert_waits,
    broken,
    found,
    recovering,
    rules_of,
    unguarded,
    with_a_bound,
    worker_node,
)

pytestmark = pytest.mark.django_db(transaction=True)


def succeeded(**more) -> Job:
    node = more.pop("node", None) or make_node(dead_at=timezone.now())
    run = {"node": node, "token": 1, "started_at": timezone.now(), "lease": 1}
    return make("succeeded", **{**run, **more})


# What breaks each rule


def _dead_node_that_runs() -> object:
    return make("running", node=make_node(dead_at=ago(LONG))).pk


def _running_on_no_node() -> object:
    job = make("running", node=make_node(), age=LONG)
    Job.objects.update(node_id=uuid.uuid4())
    return job.pk


def _silent_node_that_runs() -> object:
    return make("running", node=let_heartbeat(make_node(started_at=ago(2 * LONG)), LONG)).pk


def _silent_node() -> object:
    return let_heartbeat(make_node(started_at=ago(2 * LONG)), LONG).pk


def _node_that_never_beat() -> object:
    return make_node(started_at=ago(LONG)).pk


def _dead_node_with_a_beat() -> object:
    return let_heartbeat(make_node(dead_at=ago(LONG))).pk


def _note(state: str, **more) -> object:
    return Cancellation.objects.create(job=make(state, **more).pk, at=ago(LONG)).pk


#: For each rule the ways to break it; each returns the key that is named.
BREAKERS: list[tuple[str, Callable[[], object]]] = [
    ("state-known", lambda: make("lost", finished_at=timezone.now()).pk),
    ("live-not-finished", lambda: make("scheduled", age=-LONG, finished_at=timezone.now()).pk),
    ("live-not-finished", lambda: make("ready", finished_at=timezone.now()).pk),
    ("live-not-finished", lambda: make("running", node=worker_node(), finished_at=timezone.now()).pk),
    ("ended-finished", lambda: make("failed", finished_at=None).pk),
    ("failure-explained", lambda: make("failed", error=None).pk),
    ("failure-explained", lambda: make("cancelled", error=None).pk),
    ("success-without-error", lambda: succeeded(error=ERROR).pk),
    ("success-claimed", lambda: succeeded(lease=0).pk),
    ("success-claimed", lambda: succeeded(token=None).pk),
    ("success-claimed", lambda: make("succeeded", lease=1, token=1, started_at=timezone.now()).pk),
    ("success-claimed", lambda: succeeded(started_at=None).pk),
    ("running-claimed", lambda: make("running", node=worker_node(), token=None).pk),
    ("running-claimed", lambda: make("running", node=worker_node(), lease=0).pk),
    ("running-claimed", lambda: make("running", node=worker_node(), started_at=None).pk),
    ("running-claimed", lambda: make("running", node=None).pk),
    ("counts-add-up", lambda: make("failed", retries=-1).pk),
    ("counts-add-up", lambda: make("scheduled", age=-LONG, snoozes=-1).pk),
    ("counts-add-up", lambda: make("failed", lease=2, node_losses=2, crashes=1, errors=[ERROR]).pk),
    ("counts-add-up", lambda: make("failed", lease=2, node_losses=2**31 - 1, crashes=2**31 - 1, errors=[ERROR]).pk),
    ("losses-explained", lambda: make("scheduled", age=-LONG, lease=3, crashes=1).pk),
    ("losses-explained", lambda: succeeded(lease=3, node_losses=1).pk),
    ("running-on-a-node", _running_on_no_node),
    ("dead-node-rescued", _dead_node_that_runs),
    ("silent-node-rescued", _silent_node_that_runs),
    ("silent-node-dead", _silent_node),
    ("silent-node-dead", _node_that_never_beat),
    ("dead-node-silent", _dead_node_with_a_beat),
    ("due-ready", lambda: make("scheduled", age=LONG).pk),
    ("ready-taken", lambda: make("ready", age=LONG).pk),
    ("ready-taken", lambda: make("ready", age=LONG, queue="mail", rank=9).pk),
    ("expired-cancelled", lambda: make("scheduled", age=-LONG, expires_at=ago(LONG)).pk),
    ("expired-cancelled", lambda: make("ready", age=LONG, expires_at=ago(LONG)).pk),
    ("cancellation-heeded", lambda: _note("scheduled", age=-LONG)),
    ("cancellation-heeded", lambda: _note("failed")),
    ("marker-succeeded", lambda: Marker.objects.create(key="k", kind="task", job=make("failed").pk).pk),
]

#: Broken by something else than a row; tested below.
OTHERS = {"dead-everywhere", "known-at-home", "one-marker-per-key", "schema-complete"}

#: Of a table that is divided such a row would be among those that ended, which have no place for it.
NOWHERE = {"state-known", "live-not-finished"}


@pytest.mark.parametrize(("rule", "break_it"), BREAKERS, ids=[f"{n}-{rule}" for n, (rule, _) in enumerate(BREAKERS)])
def test_each_rule_sees_what_breaks_it(watching, rule, break_it):
    if rule in NOWHERE and store.of("default").is_divided:
        with pytest.raises(IntegrityError, match="no partition"), unguarded():
            break_it()
        return
    assert_seen(rule, break_it)


def test_each_rule_is_seen_broken():
    assert {*SHAPES} | rules_of("jobs.contrib.verify") == {rule for rule, _ in BREAKERS} | OTHERS


# What breaks none


def test_a_database_in_which_all_is_well(watching):
    make("scheduled", age=-60)
    make("scheduled", age=1)
    make("ready", age=1)
    make("ready", expires_at=ago(1))
    # No worker consumes its queue.
    make("ready", age=LONG, queue="nobody")
    running = make("running", node=watching, age=LONG)
    succeeded()
    # Adopted from somebody else's message, which brings its own number.
    make("failed", retries=5)
    make("cancelled")
    Cancellation.objects.create(job=running.pk, at=ago(LONG))
    make_node(dead_at=timezone.now(), signed_off=True)
    report = verify()
    assert broken(report) == {}
    assert recovering(report) == {"due-ready": 1, "ready-taken": 1, "expired-cancelled": 1}
    assert report.workers == 1


@pytest.mark.parametrize(("rule", "break_it"), with_a_bound(BREAKERS))
@pytest.mark.parametrize("age", [None, 2.0])
def test_nothing_is_broken_as_long_as_nobody_could_put_it_right(rule, break_it, age):
    """Without a worker, or with one that has just come."""
    if age is not None:
        let_heartbeat(make_node(started_at=ago(age)))
    assert_waits(rule, break_it)


@pytest.mark.parametrize("why", ["busy", "stopping", "elsewhere"])
def test_a_job_that_no_process_is_free_for_breaks_nothing(watching, why):
    """What waits behind others may wait as long as it takes."""
    make("ready", age=LONG)
    if why == "busy":
        make("running", node=watching, queue="mail")
    elif why == "stopping":
        Node.objects.update(stopping_at=timezone.now())
    else:
        Node.objects.update(queues=["mail"])
    report = verify()
    assert (broken(report), recovering(report)) == ({}, {"ready-taken": 1})


def test_a_paused_queue_breaks_nothing(watching):
    make("ready", age=LONG)
    pauses.pause("celery")
    report = verify()
    assert (broken(report), recovering(report)) == ({}, {})


def test_a_cancelled_run_that_goes_on_breaks_nothing(watching):
    _note("running", node=watching)
    report = verify()
    assert (broken(report), recovering(report)) == ({}, {})


# The watch


@pytest.fixture
def short(monkeypatch):
    """Bounds of a second or two."""
    for name, value in {"SLACK": 0.2, "LONGEST_TICK": 0.2}.items():
        monkeypatch.setattr(f"jobs.contrib.verify.rules.{name}", value)
    monkeypatch.setattr("jobs.contrib.verify.verify.STEP", 0.05)


@pytest.mark.slow
def test_what_recovers_while_it_is_watched_is_not_broken(watching, short):
    """After an outage of the database all times are old."""
    job = make("scheduled", age=LONG)
    told: list[str] = []

    def look(line: str) -> None:
        told.append(line)
        transitions.make_due("default", 10)

    assert broken(verify(tell=look)) == {}
    assert told == ["1 rows should have recovered by now: watching them for up to 1 s"]
    Job.objects.filter(pk=job.pk).update(state="scheduled")
    assert broken(verify(patient=False)) == {"due-ready": 1}, "the time in the row alone"


@pytest.mark.parametrize(("state", "rule"), [("scheduled", "due-ready"), ("ready", "ready-taken")])
def test_what_nobody_touches_is_broken_when_its_bound_is_over(watching, short, state, rule):
    make(state, age=LONG)
    began = time.monotonic()
    assert broken(verify()) == {rule: 1}
    assert 0.5 < time.monotonic() - began < 30


def test_a_worker_that_takes_other_jobs_during_the_watch_is_not_blamed(watching, short):
    make("ready", age=LONG)
    report = verify(tell=lambda line: make("running", node=watching) and None)
    assert (broken(report), recovering(report)) == ({}, {"ready-taken": 1})


def test_a_worker_that_dies_during_the_watch_is_not_blamed(watching, short):
    make("scheduled", age=LONG)
    report = verify(tell=lambda line: Node.objects.update(dead_at=timezone.now()) and None)
    assert (broken(report), recovering(report)["due-ready"]) == ({}, 1)


@pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite's one write lock")
def test_what_waits_for_a_body_on_sqlite_is_not_broken(watching, short):
    """A body holds the only write lock as long as it runs: no worker can do anything."""
    make("scheduled", age=LONG)
    body = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)
    body.execute("BEGIN IMMEDIATE")
    try:
        report = verify()
    finally:
        body.close()
    assert (broken(report), recovering(report)) == ({}, {"due-ready": 1})
    assert broken(verify()) == {"due-ready": 1}
    with connection.cursor() as cursor:
        assert cursor.execute("PRAGMA busy_timeout").fetchone() == (20_000,), "as it was"


@pytest.mark.parametrize("works", [True, False])
def test_more_than_one_batch_is_broken_only_if_none_of_it_moves(watching, short, settings, works):
    settings.JOBS = {**settings.JOBS, "BATCH": 3}
    for number in range(5):
        make("scheduled", age=LONG - number)
    report = verify(tell=lambda line: transitions.make_due("default", 1) and None if works else None)
    assert broken(report) == ({} if works else {"due-ready": 5})
    assert recovering(report) == ({"due-ready": 4, "ready-taken": 1} if works else {})


def test_a_row_that_comes_back_under_another_lease_is_not_the_same(watching, short):
    dead = make_node(dead_at=ago(LONG))
    job = make("running", node=dead)
    report = verify(tell=lambda line: Job.objects.filter(pk=job.pk).update(lease=2) and None)
    assert (broken(report), recovering(report)) == ({}, {"dead-node-rescued": 1})


# Several databases


@pytest.mark.slow
def test_a_node_that_is_dead_at_home_is_dead_everywhere(second, watching):
    """In the end: that database was away when the node was buried."""
    buried, forgotten, alive = make_node(dead_at=ago(LONG)), make_node(dead_at=ago(LONG)), let_heartbeat(make_node())
    late = make_node(dead_at=timezone.now())
    for node, dead_at in ((buried, timezone.now()), (forgotten, None), (alive, None), (late, None)):
        Node.objects.using(second).create(pk=node.pk, hostname="web1", pid=1, dead_at=dead_at)
    report = verify(patient=False)
    assert (broken(report), recovering(report)) == ({"dead-everywhere": 1}, {"dead-everywhere": 1})
    assert found(report)["dead-everywhere"].examples == [f"second:{forgotten.pk}"]
    with databases.side() as side:
        Rescue(side).run_once()
    report = verify()
    assert (broken(report), recovering(report)) == ({}, {})


def test_a_node_that_home_has_forgotten_is_named(second, watching):
    """It was pruned, or that database was restored: nobody at home can declare it dead."""
    old, young = (Node(pk=uuid.uuid4(), hostname="web1", pid=1, started_at=ago(age)) for age in (LONG, 0.0))
    dead = Node(pk=uuid.uuid4(), hostname="web1", pid=1, dead_at=ago(LONG))
    Node.objects.using(second).bulk_create([old, young, watching, dead])
    report = verify(patient=False)
    assert (broken(report), recovering(report)) == ({"known-at-home": 1}, {"known-at-home": 1})
    assert found(report)["known-at-home"].examples == [f"second:{old.pk}"]


def test_all_databases_are_verified(second, watching):
    key = uuid.uuid4()
    Job.objects.using(second).create(pk=key, task="t", queue="q", state="failed", finished_at=timezone.now(), error={})
    lost = make("failed", crashes=1, lease=1)
    Job.objects.using(second).filter(pk=key).update(node_losses=1, lease=1)
    report = verify()
    assert broken(report) == {"losses-explained": 2}
    assert found(report)["losses-explained"].examples == [f"default:{lost.pk}", f"second:{key}"]


def test_a_database_without_tables_is_named(second):
    with connections[second].cursor() as cursor:
        cursor.execute("DROP TABLE jobs_cancellation")
    with pytest.raises(Unverifiable, match=r"'second' cannot be verified: .*run manage.py migrate"):
        verify()


# The schema


def test_a_key_that_has_two_markers_is_named(watching, monkeypatch):
    [unique] = Marker._meta.constraints
    with monkeypatch.context() as without, connection.schema_editor() as editor:
        # SQLite makes the table anew, as the model says.
        without.setattr(Marker._meta, "constraints", [])
        editor.remove_constraint(Marker, unique)
    try:
        for kind in ("task", "task", "once"):
            Marker.objects.create(key="welcome:1", kind=kind)
        assert found(verify())["one-marker-per-key"].examples == ["welcome:1"]
    finally:
        Marker.objects.all().delete()
        with connection.schema_editor() as editor:
            editor.add_constraint(Marker, unique)


def test_a_constraint_that_was_dropped_is_named(monkeypatch):
    what = next(each for each in Job._meta.constraints if each.name == "jobs_job_owner")
    with monkeypatch.context() as patch, connection.schema_editor() as editor:
        # SQLite makes the table again, from the model.
        patch.setattr(Job._meta, "constraints", [each for each in Job._meta.constraints if each is not what])
        editor.remove_constraint(Job, what)
    try:
        report = verify()
        assert broken(report) == {"schema-complete": 1}
        assert found(report)["schema-complete"].examples == ["jobs_job_owner"]
    finally:
        with connection.schema_editor() as editor:
            editor.add_constraint(Job, what)


def test_an_index_that_was_dropped_is_named():
    what = next(each for each in Job._meta.indexes if each.name == "jobs_job_ready")
    # On PostgreSQL it is of the partition of what lives alone.
    asked = "SELECT pg_get_indexdef('jobs_job_ready'::regclass)"
    again = databases.ask("default", asked) if connection.vendor == "postgresql" else []
    with connection.schema_editor() as editor:
        editor.remove_index(Job, what)
    try:
        assert found(verify())["schema-complete"].examples == ["jobs_job_ready"]
    finally:
        with connection.schema_editor() as editor:
            editor.execute(again[0][0]) if again else editor.add_index(Job, what)


# What it costs


@pytest.mark.slow
def test_history_is_read_back_to_the_window_or_all_of_it():
    make("failed", age=WINDOW + 60, crashes=1, lease=1)
    assert broken(verify()) == {}
    assert broken(verify(everything=True)) == {"losses-explained": 1}
    # A live job is live, however old it is.
    make("scheduled", age=WINDOW + 60, run_at=ago(-LONG), crashes=1, lease=1)
    assert broken(verify()) == {"losses-explained": 1}


def test_all_of_history_is_read_part_by_part(monkeypatch):
    monkeypatch.setattr("jobs.contrib.verify.verify.PART", 2)
    monkeypatch.setattr("jobs.contrib.verify.verify.HISTORY", 3)
    for number in range(4):
        make("failed", age=number, crashes=1, lease=1)
        make("ready")
    assert broken(verify()) == {"losses-explained": 3}
    assert broken(verify(everything=True)) == {"losses-explained": 4}


def test_of_a_long_backlog_the_first_jobs_are_read_or_all_of_them(monkeypatch):
    monkeypatch.setattr("jobs.contrib.verify.verify.MOST", 3)
    for number in range(6):
        make("scheduled", age=-LONG + number, crashes=1, lease=1)
    assert broken(verify()) == {"losses-explained": 3}
    assert broken(verify(everything=True)) == {"losses-explained": 6}


READS = ("SELECT", "WITH RECURSIVE head", "PRAGMA", "BEGIN", "ROLLBACK")


@pytest.mark.slow
def test_it_only_reads_and_by_its_indexes(watching):
    template = succeeded(age=2 * WINDOW)
    names = ", ".join(field.column for field in Job._meta.concrete_fields if field.column != "id")
    made = int(time.time() * 1000 - 2000 * WINDOW)
    new_id = f"printf('%012x70008%015x', {made} + i, i)"
    if connection.vendor == "postgresql":
        new_id = f"(lpad(to_hex({made} + i), 12, '0') || '70008' || lpad(to_hex(i), 15, '0'))::uuid"
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50000) "
            f"INSERT INTO jobs_job (id, {names}) SELECT {new_id}, {names} FROM jobs_job, n"
        )
    assert template.state == "succeeded"
    for _ in range(5):
        make("scheduled", age=LONG, expires_at=ago(LONG))
        make("scheduled", age=LONG)
        make("ready", age=LONG)
        make("running", node=make_node(dead_at=ago(LONG)))
        make("failed")
        _note("failed")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    with databases.side() as side:
        heartbeats.send(side, watching.pk)
    assert len(broken(verify(patient=False))) == 5
    with CaptureQueriesContext(connection) as queries:
        verify(patient=False)
    statements = [query["sql"].removeprefix("SET LOCAL jit = off; ") for query in queries]
    assert not [sql for sql in statements if not sql.lstrip().startswith(READS)]
    for sql in [sql for sql in statements if "jobs_job" in sql and "sqlite_master" not in sql and "pg_" not in sql]:
        text = plan(sql)
        assert "Seq Scan on jobs_job" not in text, f"{sql}\n{text}"
        scans = [line for line in text.splitlines() if "SCAN jobs_job" in line and "USING" not in line]
        assert not scans, f"{sql}\n{text}"


# The command


def run(*args: str) -> tuple[int, str, str]:
    """The exit status, and what was written."""
    out, err = StringIO(), StringIO()
    try:
        call_command("jobs", "verify", *args, stdout=out, stderr=err, no_color=True)
    except CommandError as exc:
        return exc.returncode, out.getvalue(), str(exc)
    return 0, out.getvalue(), err.getvalue()


def test_a_line_for_each_rule_and_exit_status_0():
    status, out, _ = run()
    lines = out.splitlines()
    assert status == 0
    assert [line.split()[0] for line in lines[:-1]] == [*SHAPES, *(rule.id for rule in RULES)]
    assert {line.split()[1] for line in lines[:-1]} == {"ok"}
    assert lines[-1] == f"{len(lines) - 1} rules, 0 violations, 0 recovering, 0 workers: nothing recovers without one"


@pytest.mark.slow
def test_violations_are_counted_named_and_exit_status_1(watching):
    keys = {str(make("failed", crashes=1, lease=1).pk) for _ in range(7)}
    make("scheduled", age=1)
    status, out, error = run()
    assert (status, error) == (1, "7 violations of the promise.")
    assert "losses-explained       violations 7   each job" in out
    assert "due-ready              recovering 1   a scheduled job" in out
    assert not any(key in out for key in keys)
    _, out, _ = run("--verbosity", "2")
    assert sum(key in out for key in keys) == 5
    status, out, _ = run("--json")
    report = json.loads(out)
    assert (status, report["violations"], report["recovering"], report["workers"]) == (1, 7, 1, 1)
    by_rule = {rule["rule"]: rule for rule in report["rules"]}
    assert by_rule["losses-explained"]["violations"] == 7
    assert len(by_rule["losses-explained"]["examples"]) == 5
    assert set(by_rule["losses-explained"]["examples"]) < keys


def test_of_markers_the_newest_are_read_or_all(monkeypatch):
    monkeypatch.setattr("jobs.contrib.operations.selection.SEARCHED", 2)
    Marker.objects.create(key="old", kind="task", job=make("failed").pk)
    for key in ("b", "c"):
        Marker.objects.create(key=key, kind="task", job=succeeded().pk)
    assert verify(patient=False).violations == 0
    assert [each.rule for each in verify(everything=True, patient=False).findings if each.violations] == [
        "marker-succeeded"
    ]


def test_a_database_that_is_away_is_exit_status_2(monkeypatch):
    def away(everything: bool) -> None:
        raise Unverifiable("the database 'default' cannot be verified: gone")

    monkeypatch.setattr("jobs.contrib.verify.verify._look", away)
    assert run("--json") == (2, "", "the database 'default' cannot be verified: gone")


# In a live system


@pytest.mark.slow
def test_a_busy_system_that_recovers_breaks_nothing(tmp_path):
    """Under load, with processes and a worker that are killed, and right after."""
    reports: list[Report] = []
    ended = threading.Event()
    failures: list[BaseException] = []

    def verify_all_the_time() -> None:
        try:
            while len(reports) < 4 or not ended.is_set():
                reports.append(verify(everything=True))
        except BaseException as exc:
            failures.append(exc)
        finally:
            connection.close()

    with Worker(concurrency=2) as first, Worker(concurrency=2):
        verifier = threading.Thread(target=verify_all_the_time)
        verifier.start()
        try:
            ids = [tasks.effect.apply_async((f"e{n}",), countdown=n % 3).id for n in range(80)]
            ids += [tasks.kills_once.delay(f"k{n}", str(tmp_path / f"k{n}")).id for n in range(3)]
            gone = tasks.waits.delay("w", str(tmp_path / "started"), str(tmp_path / "gate")).id
            wait_for((tmp_path / "started").exists, 30, "a body runs")
            first.kill()
            (tmp_path / "gate").touch()
            wait_ended(*ids, gone, timeout=60)
        finally:
            ended.set()
            verifier.join(60)
    assert not failures
    assert len(reports) > 3
    assert [broken(report) for report in reports if report.violations] == []
    assert broken(verify(everything=True)) == {}


def test_rescue_and_clock_put_right_what_recovers(watching):
    make("running", node=make_node(dead_at=timezone.now()))
    make("scheduled", age=1)
    make("ready", expires_at=ago(1))
    assert recovering(verify()) == {"dead-node-rescued": 1, "due-ready": 1, "expired-cancelled": 1}
    with databases.side() as side:
        Rescue(side).run_once()
    clock.tick()
    assert recovering(verify()) == {}
