"""The claim: who gets which job, in which order, at which cost; and how a claim is renewed and given back."""

from __future__ import annotations

import datetime
import os
import re
import threading
import time
import uuid
from contextlib import nullcontext

import pytest
from celery import Celery, current_app
from django.db import OperationalError, connection, connections
from django.db.models import TextField, Value
from django.db.models.functions import Cast, Concat, Now
from django.utils import timezone

from jobs import store
from jobs.calling.calls import rank_of
from jobs.lifecycle import claims, transitions
from jobs.lifecycle.claims import Claimer
from jobs.lifecycle.worker_state import worker_state
from jobs.maintenance import clock, rescue
from jobs.maintenance.rescue import OwnJobs
from jobs.models import Job, Node, Pause
from jobs.models.fields import uuid7
from jobs.store import databases, postgresql, sessions
from jobs.worker import supervisor
from jobs.worker.runner import Runner
from tests import tasks
from tests.helpers import driver
from tests.helpers.concurrency import Elsewhere, open_transaction
from tests.helpers.harness import effects
from tests.helpers.plans import explained, explained_generically, statements_of
from tests.helpers.rows import fill, make, make_node
from tests.helpers.servers import fair, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

QUEUE = "celery"


def ago(seconds: float) -> datetime.datetime:
    return timezone.now() - datetime.timedelta(seconds=seconds)


def claim(limit: int = 1, queue: str = QUEUE, node: uuid.UUID | None = None) -> list[Job]:
    return Claimer().claim("default", queue, node or worker_state.node, limit)


def keys(jobs: list[Job]) -> list[uuid.UUID]:
    return [job.pk for job in jobs]


def state(job: Job) -> tuple:
    job = Job.objects.get(pk=job.pk)
    return job.state, job.lease, job.crashes, job.node_losses, job.retries


def on_postgresql() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer, and is claimed from the start of the queue")


# Which, and in which order


def test_a_batch_comes_in_the_order_of_rank_time_and_id(node):
    at = [ago(seconds) for seconds in (30, 20, 10)]
    # As jobs have them: MariaDB sorts those of version 4 in another order than Python.
    first, second, third = sorted(uuid7() for _ in range(3))
    rows = [
        make(id=third, rank=-5, run_at=at[2]),
        make(rank=0, run_at=at[0]),
        make(id=first, rank=0, run_at=at[1]),
        make(id=second, rank=0, run_at=at[1]),
        make(rank=0, run_at=at[2]),
        make(rank=7, run_at=at[0]),
    ]
    for row in (rows[place] for place in (3, 0, 5, 1, 4, 2)):
        # The order in which they are stored says nothing.
        Job.objects.filter(pk=row.pk).update(retries=1)
    assert keys(claim(2)) == keys(rows[:2])
    assert keys(claim(100)) == keys(rows[2:])


def test_a_claim_is_a_fresh_token_and_the_next_lease(node):
    rows = [make(lease=lease) for lease in (0, 6)]
    jobs = {job.pk: job for job in claim(10)}
    assert [jobs[row.pk].lease for row in rows] == [1, 7]
    [token] = {job.token for job in jobs.values()}
    assert 0 < token < 2**63
    for row in Job.objects.all():
        assert (row.state, row.token, row.node_id) == ("running", token, node.pk)
        assert abs((row.started_at - timezone.now()).total_seconds()) < 10
        assert row.lease == jobs[row.pk].lease
    transitions.hand_back_claim("default", node.pk, token)
    assert {job.token for job in claim(10)} != {token}


def test_a_claimed_job_is_the_row_that_it_was(node):
    """It is made without Django's field by field, and what a run does not need is read when somebody asks."""
    result = tasks.noop.apply_async(
        ("é", {"a": [1.5, None]}),
        {"k": "%s"},
        priority=3,
        queue=QUEUE,
        headers={"tenant": "acme"},
        expires=datetime.datetime(2031, 1, 2, tzinfo=datetime.UTC),
        root_id=str(uuid.uuid4()),
        parent_id=str(uuid.uuid4()),
    )
    [job] = claim()
    row = Job.objects.get(pk=result.id)
    for field in Job._meta.concrete_fields:
        mine, theirs = getattr(job, field.attname), getattr(row, field.attname)
        assert (field.attname, mine, type(mine)) == (field.attname, theirs, type(theirs))
    assert (job.idempotency_key, job.headers, job.root_id) == (str(row.pk), {"tenant": "acme"}, row.root_id)


@pytest.mark.parametrize("name", ["it's", '"', "100%", "%s", "%(node)s", "{node}", "a\\", "$1", "ö;--", "x" * 255])
def test_the_name_of_a_queue_is_no_sql(node, name):
    row = make(queue=name)
    make()
    assert keys(claim(10, queue=name)) == [row.pk]


def test_other_queues_are_left_alone(node):
    make(queue="mail")
    assert claim(10) == []


def test_a_claim_takes_no_more_than_it_was_asked_for(node):
    for _ in range(30):
        make()
    assert [len(claim(limit)) for limit in (1, 3, 7)] == [1, 2, 5]
    assert len(claim(1000)) == 22


def test_what_is_not_ready_is_not_claimed(node):
    for each in ("scheduled", "running", "succeeded", "failed", "cancelled"):
        make(each)
    assert claim(10) == []


def test_a_dead_node_claims_nothing(node):
    make()
    assert claim(node=uuid.uuid4()) == [], "nor one that nobody knows"
    transitions.write_death(node.pk, "default")
    assert claim() == []
    assert claim(node=make_node().pk) != []


def test_a_paused_queue_waits(node):
    make()
    Pause.objects.create(queue=QUEUE)
    assert claim() == []
    Pause.objects.all().delete()
    assert claim() != []


def test_what_expired_is_not_claimed_although_nobody_has_cancelled_it_yet(node):
    make(expires_at=ago(0.05))
    later = make(expires_at=ago(-60))
    assert keys(claim(10)) == [later.pk]


@pytest.mark.parametrize(
    ("broker", "order"),
    [("amqp://h//", [9, 1, None, 0]), ("redis://h/0", [None, 0, 1, 9]), ("jobs://", [None, 0, 1, 9])],
)
def test_priorities_are_sorted_as_the_projects_broker_would(broker, order):
    app = Celery(broker=broker, set_as_current=False)
    given = sorted([1, 9, None, 0], key=lambda priority: (rank_of(app, priority or 0), order.index(priority)))
    assert given == order


def test_the_server_process_is_noted_and_the_claim_is_not_synchronous(node):
    """What a crash of the database forgets is claimed again, under another token; and nothing after it is forgotten."""
    on_postgresql()
    make()
    [job] = claim()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid(), current_setting('synchronous_commit')")
        assert cursor.fetchone() == (job.backend, "on")


# Several at once


def test_of_two_that_claim_at_once_none_waits_and_no_row_is_had_twice(node):
    on_postgresql()
    rows = [make(age=10 - number) for number in range(6)]
    first: list[Job] = []
    with open_transaction(lambda: first.extend(claim(2))):
        began = fair()
        assert keys(claim(2)) == keys(rows[2:4])
        assert fair() - began < 1
    assert keys(first) == keys(rows[:2])
    assert keys(claim(10)) == keys(rows[4:])


def test_a_row_that_somebody_has_locked_is_skipped(node):
    on_postgresql()
    locked, free = make(age=10), make()
    with open_transaction(lambda: Job.objects.select_for_update().get(pk=locked.pk)):
        assert keys(claim(10)) == [free.pk]
    assert keys(claim(10)) == [locked.pk]


def test_many_processes_drain_a_queue_and_each_job_is_had_once(node):
    tasks.noop.delay_many([(number,) for number in range(400)], queue=QUEUE)
    had: list[uuid.UUID] = []
    start = threading.Barrier(4)

    def drain():
        claimer = Claimer()
        start.wait(10)
        while jobs := claimer.claim("default", QUEUE, worker_state.node, 10):
            had.extend(keys(jobs))

    drained = [Elsewhere(drain) for _ in range(4)]
    assert [each.result() for each in drained] == [None] * 4
    assert len(had) == len(set(had)) == 400


# Renewed, and given back


def test_a_renewed_row_is_not_given_back(node):
    make(age=2), make(age=1)
    begun, waiting = claim(2)
    batch = begun.token
    assert claims.renew(waiting)
    assert waiting.token != batch
    assert transitions.hand_back_claim("default", node.pk, batch, begun.pk) == 0
    assert transitions.succeed(waiting, None, 0.0)
    assert state(waiting)[0] == "succeeded"


def test_a_row_that_was_given_back_is_not_renewed(node):
    make(age=2), make(age=1)
    begun, waiting = claim(2)
    before = waiting.token
    assert transitions.hand_back_claim("default", node.pk, begun.token, begun.pk) == 1
    assert not claims.renew(waiting)
    assert waiting.token == before
    [again] = claim(2)
    assert again.pk == waiting.pk
    assert not claims.renew(waiting), "nor when another process has it"
    assert not transitions.succeed(waiting, None, 0.0)
    assert transitions.succeed(again, None, 0.0)


@pytest.mark.parametrize("key", [None, "theirs"])
def test_what_is_given_back_keeps_its_place(node, key):
    make(age=3), make(age=2, unique_key=key), make(age=1)
    begun, waiting = claim(2)
    transitions.hand_back_claim("default", node.pk, begun.token, begun.pk)
    assert keys(claim()) == [waiting.pk]


def test_a_claim_that_a_crash_of_the_database_forgot_is_not_renewed(node):
    """The next claim has the same lease, and another token."""
    make()
    [job] = claim()
    Job.objects.update(token=9)
    assert not claims.renew(job)
    assert Job.objects.get().token == 9


def test_of_a_renewal_and_a_return_at_the_same_time_one_does_nothing(node):
    on_postgresql()
    make(age=2), make(age=1)
    begun, waiting = claim(2)
    renewed: list[bool] = []
    with open_transaction(lambda: renewed.append(claims.renew(waiting))):
        back = Elsewhere(lambda: transitions.hand_back_claim("default", node.pk, begun.token, begun.pk))
        time.sleep(0.2)
        assert not back.outcome, "it waits for the renewal"
    assert (renewed, back.result()) == ([True], 0)
    assert state(waiting)[0] == "running"

    make(age=1)
    [third] = claim(1)
    with open_transaction(lambda: transitions.hand_back_claim("default", node.pk, third.token)):
        late = Elsewhere(lambda: claims.renew(third))
        time.sleep(0.2)
        assert not late.outcome
    assert late.result() is False
    assert state(third)[0] == "ready"


def test_a_renewal_outlives_a_crash_of_the_database(node):
    """Its commit is synchronous: what cannot roll back runs under it."""
    on_postgresql()
    assert "synchronous_commit" in postgresql.CLAIM
    assert "synchronous_commit" not in postgresql.RENEW


def test_a_return_leaves_what_was_begun_and_what_is_of_other_claims(node):
    make(age=3), make(age=2), make(age=1)
    begun, waiting = claim(2)
    [other] = claim(1)
    elsewhere = make("running", token=begun.token, node=make_node())
    assert transitions.hand_back_claim("default", node.pk, begun.token, begun.pk) == 1
    assert [state(job)[0] for job in (begun, waiting, other, elsewhere)] == ["running", "ready", "running", "running"]
    assert state(waiting) == ("ready", 1, 0, 0, 0)
    assert Job.objects.get(pk=waiting.pk).backend is None


def test_a_row_that_waits_again_keeps_its_place(node):
    rows = [make(age=3), make(age=2), make(age=1)]
    begun, *_ = claim(2)
    transitions.hand_back_claim("default", node.pk, begun.token, begun.pk)
    assert keys(claim(10)) == keys(rows[1:])


def test_a_unique_job_goes_back_unless_another_has_its_key_by_now(node):
    begun, first, second = tasks.noop.delay(), tasks.summary.delay("mon"), tasks.summary.delay("tue")
    jobs = claim(5, queue=current_app.conf.task_default_queue)
    assert len(jobs) == 3
    holder = tasks.summary.delay("mon")
    assert not holder.existing
    assert transitions.hand_back_claim("default", node.pk, jobs[0].token, uuid.UUID(begun.id)) == 2
    assert Job.objects.get(pk=second.id).state == "ready"
    job = Job.objects.get(pk=first.id)
    assert (job.state, job.error["type"]) == ("failed", "UniqueTaken")


# A process


@pytest.fixture
def runner(node):
    worker_state.queues = [QUEUE]
    return Runner(current_app._get_current_object(), "here")


def call(task, *args) -> Job:
    return Job.objects.get(pk=task.apply_async(args, queue=QUEUE).id)


def learn(runner: Runner, *names: str) -> None:
    """The process knows that these take no time."""
    for name in names:
        runner._means[f"tests.tasks.{name}"] = 0.0001
    runner._next = 100


def test_the_first_of_a_kind_goes_alone_and_the_next_ones_together(runner, monkeypatch):
    asked = []
    real = runner._claimer.take
    monkeypatch.setattr(
        runner._claimer, "take", lambda using, claim: (asked.append(claim.limit), real(using, claim))[1]
    )
    tasks.noop.delay_many([(number,) for number in range(20)], queue=QUEUE)
    while runner.run_batch():
        pass
    assert asked[0] == 1
    assert max(asked) > 1
    assert Job.objects.filter(state="succeeded").count() == 20


def test_a_batch_ends_before_a_task_of_unknown_length(runner):
    known, unknown, rest = call(tasks.noop), call(tasks.effect, "a"), call(tasks.noop)
    learn(runner, "noop")
    assert runner.run_batch()
    assert [state(job)[0] for job in (known, unknown, rest)] == ["succeeded", "succeeded", "ready"]
    assert state(rest)[2:] == (0, 0, 0)
    assert runner.run_batch()
    assert state(rest)[0] == "succeeded"


def test_a_batch_is_no_longer_than_it_may_take(runner, monkeypatch):
    jobs = [call(tasks.noop, number) for number in range(6)]
    learn(runner, "noop")
    runner._means["tests.tasks.noop"] = 0.02
    monkeypatch.setattr(runner, "_learn", lambda *args: None)
    assert runner.run_batch()
    assert [state(job)[0] for job in jobs] == ["succeeded"] * 3 + ["ready"] * 3


def test_after_a_failure_the_next_one_goes_alone(runner):
    jobs = [call(tasks.raises, "no"), call(tasks.noop), call(tasks.noop)]
    learn(runner, "raises", "noop")
    assert runner.run_batch()
    assert "tests.tasks.raises" not in runner._means
    assert runner._next >= 1
    assert state(jobs[0])[0] == "failed"
    runner._next = 100
    again, behind = call(tasks.raises, "no"), call(tasks.noop)
    while state(again)[0] != "failed":
        assert runner.run_batch()
    assert state(behind)[0] == "ready"


@pytest.mark.parametrize("why", ["stop", "stock", "wanted"])
def test_a_batch_stops_between_two_bodies_for_whoever_is_more_important(runner, monkeypatch, why):
    jobs = [call(tasks.noop, number) for number in range(4)]
    learn(runner, "noop")
    if why == "wanted":
        monkeypatch.setattr(runner, "_is_wanted", lambda: True)

    def begin(*args, real=runner._run):
        run = real(*args)
        if why == "stop":
            worker_state.note_stop()
        worker_state.stock_waits = why == "stock"
        return run

    monkeypatch.setattr(runner, "_run", begin)
    assert runner.run_batch()
    assert [state(job) for job in jobs] == [("succeeded", 1, 0, 0, 0)] + [("ready", 1, 0, 0, 0)] * 3
    if why == "stop":
        assert not runner.run_batch(), "and it claims nothing more"


def test_a_process_whose_node_is_silent_claims_nothing(runner, settings):
    call(tasks.noop)
    worker_state.note_heartbeat()
    settings.JOBS = {**settings.JOBS, "HEARTBEAT": 0.01, "DEAD_AFTER": 0.1}
    time.sleep(0.1)
    assert not runner.run_batch()
    worker_state.note_heartbeat()
    assert runner.run_batch()


def test_no_queue_starves(runner):
    worker_state.queues = [QUEUE, "mail", "slow"]
    for name in worker_state.queues:
        for number in range(4):
            tasks.effect.apply_async((name, str(number)), queue=name)
    for _ in range(3):
        runner._next = 1
        assert runner.run_batch()
    assert effects() == dict.fromkeys(worker_state.queues, 1)


@pytest.mark.parametrize("task", ["based", "charges", "holds"])
def test_what_cannot_roll_back_has_a_token_of_its_own_before_it_begins(runner, monkeypatch, task):
    """A crash of the database may forget the claim; and whatever was given back meanwhile must not begin."""
    renewed = []
    real = claims.renew
    monkeypatch.setattr(claims, "renew", lambda job: (renewed.append(job.pk), real(job))[1])
    made = tasks.manages_itself if task == "charges" else tasks.based
    if task == "holds":
        monkeypatch.setattr(made, "holding", lambda run: nullcontext(1))
    job = call(made, "a")
    assert runner.run_batch()
    assert renewed == ([] if task == "based" else [job.pk])
    assert effects() == {"a": 1}


def test_a_row_that_was_given_back_before_it_began_does_not_run(runner, monkeypatch):
    job = call(tasks.manages_itself, "a")
    name = runner._name

    def lose(*args):
        made = name(*args)
        transitions.hand_back_claim("default", worker_state.node, Job.objects.get(pk=job.pk).token)
        return made

    monkeypatch.setattr(runner, "_name", lose)
    assert runner.run_batch()
    assert state(job) == ("ready", 1, 0, 0, 0)
    assert not effects()


def test_what_waited_long_behind_others_of_its_claim_is_renewed_before_it_begins(runner, monkeypatch):
    monkeypatch.setattr("jobs.worker.runner.OLD", -1.0)
    jobs = [call(tasks.noop), call(tasks.noop)]
    learn(runner, "noop")
    tokens = []
    real = claims.renew
    monkeypatch.setattr(claims, "renew", lambda job: (real(job), tokens.append(job.token))[0])
    assert runner.run_batch()
    assert [state(job)[0] for job in jobs] == ["succeeded"] * 2
    assert [token < 0 for token in tokens] == [True, True], "if this machine dies, the rows say which was begun"
    assert worker_state.occupied()[0].token == 0, "and nothing is left on the worker state"


def test_a_database_that_is_away_at_the_claim_ends_no_process(runner, monkeypatch):
    def away(*args):
        raise OperationalError("away")

    job = call(tasks.noop)
    with monkeypatch.context() as patch:
        patch.setattr(runner._claimer, "take", away)
        assert not runner.run_batch()
    wait_for(runner.run_batch, 10, "it is there again")
    assert state(job)[0] == "succeeded"


@pytest.mark.parametrize(("took", "least", "most"), [(0.0, 0.0, 0.6), (0.4, 1.0, 2.0)], ids=["refuses", "hangs"])
def test_a_database_that_hangs_is_left_alone_for_longer(runner, monkeypatch, took, least, most):
    """Each attempt holds the process up, and with it the jobs of the other databases."""

    def take(using, claim):
        time.sleep(took)
        raise OperationalError("connection timeout expired")

    monkeypatch.setattr(runner._claimer, "take", take)
    assert not runner.run_batch()
    assert least < runner._away["default"] - time.monotonic() < most


def test_a_session_that_the_driver_cannot_read_any_more_ends(runner, monkeypatch, caplog):
    """A body may leave any setting behind; psycopg reads times in one style only."""
    if connection.vendor != "postgresql" or driver.is_plain():
        pytest.skip("psycopg 3 only")
    monkeypatch.setattr("jobs.worker.runner.AWAY_PAUSE", 0.0)
    monkeypatch.setattr("jobs.worker.runner.HANGS", 0)
    job = call(tasks.noop)
    databases.ask("default", "SELECT set_config('datestyle', 'German', false)")
    for _ in range(2):
        runner.run_batch()
    assert "a claim goes on after an error" in caplog.text
    assert state(job)[0] == "succeeded"


@pytest.mark.parametrize("emptied", ["default", "second"])
def test_a_node_whose_row_is_gone_says_again_who_it_is(second, runner, emptied):
    """``manage.py flush``, or a backup that was loaded into a database: without the row it claims nothing there."""
    alias = second if emptied == "second" else emptied
    reads, writes = os.pipe()
    found = supervisor.Supervisor(os.getpid(), {"pool": "prefork"}, -1, writes)
    try:
        found._heartbeat()
        Node.objects.using(alias).filter(pk=worker_state.node).delete()
        job = tasks.noop.apply_async(queue=QUEUE, using=alias)
        found._look_for_itself()
        found._heartbeat()
        wait_for(runner.run_batch, 10, "jobs are claimed there again")
        assert Job.objects.using(alias).get(pk=job.id).state == "succeeded"
        found._look_for_itself()
        assert not found._is_unknown
    finally:
        os.close(reads), os.close(writes)
        found._side.close()


def test_the_log_names_the_database_that_keeps_a_worker_from_its_start(second, caplog, monkeypatch):
    monkeypatch.setattr(databases, "_complaints", {})
    reads, writes = os.pipe()
    found = supervisor.Supervisor(os.getpid(), {"pool": "prefork"}, -1, writes)
    with connections[second].cursor() as cursor:
        cursor.execute("ALTER TABLE jobs_node RENAME TO away")
    assert not found._try(found._heartbeat)
    assert [record.database for record in caplog.records if record.levelname == "ERROR"] == [second]
    os.close(reads), os.close(writes)
    found._side.close()


def test_a_node_that_cannot_say_everywhere_who_it_is_claims_where_it_can(second, monkeypatch):
    """One database was flushed, and the other one is away."""
    reads, writes = os.pipe()
    found, noted = supervisor.Supervisor(os.getpid(), {"pool": "prefork"}, -1, writes), []
    found._heartbeat()
    Node.objects.all().delete()
    with connections[second].cursor() as cursor:
        cursor.execute("ALTER TABLE jobs_node RENAME TO away")
    found._look_for_itself()
    monkeypatch.setattr(worker_state, "note_heartbeat", lambda: noted.append(1))
    assert not found._try(found._heartbeat)
    assert noted
    assert Node.objects.filter(pk=worker_state.node).exists()
    os.close(reads), os.close(writes)
    found._side.close()


def test_nodes_are_what_a_claim_is_made_for(node):
    assert Node.objects.get().pk == worker_state.node


# Plans, at 100,000 rows

ROWS = 100_000


def live() -> str:
    """The table of what waits and runs."""
    return "jobs_job_live" if store.of("default").is_divided else "jobs_job"


@pytest.fixture(params=["history", "backlog", "much runs"])
def full(request, node):
    """100,000 rows of which most have ended, or wait, or run elsewhere."""
    on_postgresql()
    other = make_node().pk
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {live()} SET (autovacuum_enabled = false)")
    fill("succeeded", ROWS if request.param == "history" else 2000)
    fill("ready", ROWS if request.param == "backlog" else 200)
    fill("ready", 200, queue="mail")
    fill("scheduled", ROWS // 10, age=-86400.0)
    fill("scheduled", 20)
    # Some wait for locks.
    Job.objects.filter(state="scheduled", run_at__gt=Now()).update(
        waits_for=Concat(Value("lock:"), Cast("pk", TextField()))
    )
    fill("running", ROWS // 2 if request.param == "much runs" else 100, node=other)
    fill("running", 20, node=node.pk)
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {live()} RESET (autovacuum_enabled)")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("statistics", ["fresh", "none", "old"])
def test_no_hot_statement_scans_or_sorts_the_table(full, statistics):
    with connection.cursor() as cursor:
        if statistics != "none":
            cursor.execute("ANALYZE")
        else:
            # TRUNCATE leaves those of the tests before, which are of other rows.
            is_mine = "(SELECT usesuper FROM pg_user WHERE usename = current_user)"
            for table in store.of("default").parts("jobs_job"):
                cursor.execute(f"DELETE FROM pg_statistic WHERE starelid = '{table}'::regclass AND {is_mine}")
    if statistics == "old":
        # What waited then has been run since.
        waited = Job.objects.filter(state="ready", queue=QUEUE).order_by("-run_at").values_list("pk", flat=True)[150:]
        Job.objects.filter(pk__in=list(waited)).update(state="succeeded", finished_at=timezone.now())
    middle = Job.objects.filter(state="ready", queue=QUEUE).order_by("rank", "run_at", "id")[100]
    values = {
        "node": worker_state.node,
        "token": 1,
        "backend": 1,
        "rank": middle.rank,
        "run_at": middle.run_at,
        "id": middle.pk,
        "lease": 1,
        "before": 1,
    }
    plans: dict[str, tuple[str, str]] = {}
    for is_after in (False, True):
        for limit in (1, 100, 200):
            sql = postgresql.claim_sql(QUEUE, limit, is_after, False)
            for how in (explained, explained_generically):
                text = how(sql, values)
                plans[f"claim {limit} {is_after} {how.__name__}"] = ("jobs_job_ready", text)
                assert "Sort" not in text, text
                if is_after:
                    # The place is where the scan begins, and no filter on its way.
                    assert re.search(r"Index Cond: .*ROW\(rank, run_at, id\) > ROW", text), text
    plans["renew"] = ("jobs_job_pkey", explained_generically(postgresql.RENEW, values))
    succeed = postgresql.SUCCEED.format("NULL::json", "0.1", "%(id)s", "%(lease)s", "%(token)s")
    plans["succeed"] = ("jobs_job_pkey", explained_generically(succeed, values))
    own = OwnJobs(os.getpid())
    for name, index, action in (
        ("has_ready", "jobs_job_ready", lambda: store.of("default").has_ready([QUEUE, "mail"])),
        ("make_due", "jobs_job_scheduled", lambda: transitions.make_due("default", 10)),
        ("make_due last", "jobs_job_scheduled", lambda: transitions.make_due("default", 10, "-run_at")),
        ("make_due since", "jobs_job_scheduled", lambda: transitions.make_due("default", 10, since=ago(9))),
        ("expire", "jobs_job_expires", lambda: transitions.expire("default", 10)),
        ("orphans", "jobs_job_running", own.hand_back_orphans),
        ("give_back", "jobs_job_running", lambda: transitions.hand_back_claim("default", worker_state.node, 1)),
        (
            "dead nodes",
            "jobs_job_running",
            lambda: rescue.rescue_all("default"),
        ),
    ):
        made = statements_of(action)
        assert made, name
        for number, sql in enumerate(made):
            # What was found is written by its key.
            plans[f"{name} {number}"] = (index if number == 0 else "", explained(sql.replace("%", "%%"), []))
    worker_state.queues = [QUEUE, "mail"]
    for number, look in enumerate(statements_of(clock.tick)[:2]):
        plans[f"clock {number}"] = ("jobs_job_scheduled", explained(look.replace("%", "%%"), []))
        for index in ("jobs_job_expires", "jobs_job_ready"):
            assert index in plans[f"clock {number}"][1], plans[f"clock {number}"][1]
    for name, (index, text) in plans.items():
        assert index in text, f"{name}\n{text}"
        assert "Seq Scan on jobs_job" not in text, f"{name}\n{text}"


def test_on_sqlite_the_claim_reads_its_index_and_sorts_nothing(node):
    if connection.vendor != "sqlite":
        pytest.skip("SQLite only")
    for _ in range(20):
        make()
    made = statements_of(lambda: claim(10))
    assert len(made) == 2
    with connection.cursor() as cursor:
        for sql in made:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
            plan = "\n".join(row[3] for row in cursor.fetchall())
            assert "USING INDEX jobs_job_ready (queue=?)" in plan or "COVERING INDEX jobs_job_ready" in plan, plan
            assert "TEMP B-TREE" not in plan, plan
            assert not re.search(r"SCAN jobs_job(?! USING)", plan), plan


def test_a_body_without_a_statement_leaves_no_warning_in_the_servers_log(runner):
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL only")
    call(tasks.noop)
    connection.ensure_connection()
    told = driver.notices(connection.connection)
    assert runner.run_batch()
    assert Job.objects.get().state == "succeeded"
    assert told == []


def test_the_name_of_a_queue_is_a_name_whatever_the_server_makes_of_backslashes(node):
    """With ``standard_conforming_strings`` off a backslash escapes the quote after it."""
    on_postgresql()
    other = make(queue="other")
    names = ["\\' OR true --", "a\\nb", "\\", "it's 100 %", "\\\\'"]
    rows = [make(queue=name) for name in names]
    with connection.cursor() as cursor:
        cursor.execute("SET standard_conforming_strings = off")
    try:
        assert [keys(claim(queue=name)) for name in names] == [[row.pk] for row in rows]
        assert state(other)[0] == "ready"
        sessions.session_of("default").notify("jobs_wakeup", ["\\'; DROP TABLE jobs_job; --"])
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET standard_conforming_strings")
