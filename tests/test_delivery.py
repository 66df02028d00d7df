"""A committed job is run, whatever the broker loses, repeats or delays."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from celery import current_app
from django.db import connection
from kombu import Exchange, Queue

from jobs import publisher
from jobs.maintenance.relay import Relay
from jobs.models import Job
from tests import tasks
from tests.harness import ROOT, Worker, effects, environment, wait_beats, wait_ended, wait_reached, wait_state
from tests.servers import RabbitMQ, Redis, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.core
def test_the_same_message_five_times_at_once_runs_once(settings):
    settings.JOBS = {**settings.JOBS, "PUBLISH": "relay"}
    results = [tasks.effect.apply_async((f"k{n}",), countdown=3600) for n in range(20)]
    Job.objects.update(state="ready", dispatched_at=connection.ops.adapt_datetimefield_value(None))
    jobs = list(Job.objects.all())
    Job.objects.update(dispatched_at="2030-01-01T00:00:00Z")
    assert publisher.publish(jobs * 5, "default", current_app) == []
    with Worker(concurrency=4) as first, Worker(concurrency=4) as second:
        wait_ended(*[result.id for result in results])
        wait_for(lambda: (first.text() + second.text()).count("a duplicate message") >= 80, 20, "all copies were seen")
    assert effects() == {f"k{n}": 1 for n in range(20)}
    assert set(Job.objects.values_list("lease", flat=True)) == {1}


@pytest.mark.core
def test_countdown_and_retry_come_back_by_the_relay():
    with Worker():
        future = tasks.effect.apply_async(("future",), countdown=1)
        retried = tasks.retries.delay("retried", 2)
        [first, second] = wait_ended(future.id, retried.id)
    assert (first.finished_at - first.created_at).total_seconds() >= 1
    assert (second.state, second.retries, second.result) == ("succeeded", 2, 2)
    assert effects() == {"future": 1, "retried": 1}


@pytest.mark.core
def test_links_chains_groups_and_chords_travel():
    with Worker() as worker:
        chain = tasks.add.apply_async((1, 2), link=tasks.effect.si("linked"))
        (tasks.add.s(1, 2) | tasks.add.s(3) | tasks.effect.si("chained")).apply_async()
        wait_ended(chain.id)
        wait_for(lambda: set(effects()) >= {"linked", "chained"}, 20, f"follow-ups ran: {worker.text()[-500:]}")
    jobs = Job.objects.all()
    assert jobs.count() == 5
    assert set(jobs.values_list("state", flat=True)) == {"succeeded"}
    assert sorted(job.result for job in jobs if job.task.endswith("add")) == [3, 3, 6]


ENQUEUER = """
import django, os, sys; django.setup()
from django.db import transaction
from tests import tasks
from tests.models import Effect
with transaction.atomic():
    Effect.objects.create(key="row")
    tasks.effect.delay("job")
    if sys.argv[1] == "before_the_commit":
        os.kill(os.getpid(), 9)
    if sys.argv[1] == "right_after_the_commit":
        # The first hook of the transaction runs before ours.
        hooks = transaction.get_connection().run_on_commit
        hooks.insert(0, (set(), lambda: os.kill(os.getpid(), 9), False))
"""


@pytest.mark.core
@pytest.mark.parametrize(
    ("moment", "sync", "expected"),
    [
        ("before_the_commit", "", set()),
        ("right_after_the_commit", "", {"row", "job"}),
        ("between_commit_and_publish", "before_publish=kill", {"row", "job"}),
        ("after_the_publish", "after_publish=kill", {"row", "job"}),
    ],
)
def test_enqueuing_process_killed(tmp_path, moment, sync, expected):
    env = environment(JOBS_SYNC_POINTS=sync, JOBS_SYNC_DIR=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", ENQUEUER, moment], env=env, cwd=ROOT, timeout=30, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert Job.objects.count() == (1 if expected else 0)
    with Worker():
        if expected:
            wait_ended(Job.objects.get().pk)
        else:
            wait_ended(tasks.noop.delay().id)
    assert effects() == dict.fromkeys(expected, 1)


@pytest.mark.wide
@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_pool_smoke(pool):
    with Worker("-P", pool) as worker:
        results = tasks.effect.delay_many([(f"k{n}",) for n in range(10)])
        failing = tasks.raises.delay("exit")
        retried = tasks.retries.delay("r", 1)
        wait_ended(failing.id, retried.id, *[result.id for result in results])
        assert Job.objects.get(pk=failing.id).error["type"] == "SystemExit"
        assert worker.stop() == 0
    assert effects() == {**{f"k{n}": 1 for n in range(10)}, "r": 1}


@pytest.mark.servers
@pytest.mark.parametrize("kind", [Redis, RabbitMQ])
def test_broker_down_while_jobs_come_in(kind, use_broker, request):
    server = request.getfixturevalue(f"{kind.name}_server")
    use_broker(server.url)
    warm = tasks.effect.delay("warm")
    with Worker() as worker:
        wait_ended(warm.id)
        server.kill()
        slowest, results = 0.0, []
        for n in range(50):
            began = time.monotonic()
            results.append(tasks.effect.delay(f"k{n}"))
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 1.5
        server.start()
        wait_ended(*[result.id for result in results], timeout=60)
        assert worker.process.poll() is None
    assert effects() == {"warm": 1, **{f"k{n}": 1 for n in range(50)}}


@pytest.mark.servers
@pytest.mark.parametrize("kind", [Redis, RabbitMQ])
def test_a_broker_that_hangs_holds_nobody_up_for_long(kind, use_broker, request):
    """Stopped, not killed: the kernel still accepts connections, and nobody answers."""
    server = request.getfixturevalue(f"{kind.name}_server")
    use_broker(server.url)
    tasks.noop.delay()
    server.pause()
    try:
        slowest = 0.0
        for _ in range(5):
            publisher.breaker.closed_again = 0.0  # every call pays, as the first of a process does
            began = time.monotonic()
            tasks.noop.delay()
            slowest = max(slowest, time.monotonic() - began)
    finally:
        server.resume()
    assert slowest < 1.5
    assert Job.objects.filter(dispatched_at=None).count() == 5


@pytest.mark.servers
@pytest.mark.parametrize("kind", [Redis, RabbitMQ])
def test_a_row_that_cannot_be_built_stands_in_nobodys_way(kind, use_broker, request, settings):
    """With Redis, kombu takes a ``KeyError`` for a lost connection."""
    use_broker(request.getfixturevalue(f"{kind.name}_server").url)
    settings.JOBS = {**settings.JOBS, "PUBLISH": "relay"}
    bad, good = tasks.noop.delay(), tasks.noop.delay()
    Job.objects.filter(pk=bad.id).update(options={"broken": True}, run_at="2020-01-01T00:00:00Z")
    relay = Relay()
    relay.run_once()
    assert [str(job.pk) for job in Job.objects.filter(dispatched_at__isnull=False)] == [good.id]
    assert "could not be built" in Job.objects.get(pk=bad.id).error["message"]
    assert relay.trouble is None


@pytest.mark.servers
@pytest.mark.parametrize("declared", [False, True])
def test_a_queue_that_is_something_else_in_redis_stands_in_nobodys_way(use_broker, redis_server, settings, declared):
    """A batch is one pipeline: the others left, and all of it was taken for lost, and sent again at each tick."""
    use_broker(redis_server.url)
    settings.JOBS = {**settings.JOBS, "PUBLISH": "relay"}
    relay = Relay()
    if declared:
        tasks.noop.apply_async(queue="session")
        relay.run_once()
    redis_server.call("DEL", "session")
    redis_server.call("SET", "session", "of the site")
    bad = tasks.noop.apply_async(queue="session")
    good = tasks.noop.delay_many([(n,) for n in range(10)])
    for _ in range(3):
        relay.run_once()
    assert_only_one_was_refused(redis_server, bad, good)


@pytest.mark.servers
def test_an_exchange_that_leads_to_something_else_in_redis_stands_in_nobodys_way(use_broker, redis_server, settings):
    """Nothing is declared for it, so that the batch is the first that fails."""
    use_broker(redis_server.url)
    settings.JOBS = {**settings.JOBS, "PUBLISH": "relay"}
    redis_server.call("SADD", "_kombu.binding.others", "\x06\x16".join(("sessions", "", "session")))
    redis_server.call("SET", "session", "of the site")
    bad = tasks.noop.apply_async(exchange="others", routing_key="sessions")
    good = tasks.noop.delay_many([(n,) for n in range(10)])
    relay = Relay()
    for _ in range(3):
        relay.run_once()
    assert_only_one_was_refused(redis_server, bad, good)


def assert_only_one_was_refused(redis_server, bad, good):
    left = Job.objects.filter(dispatched_at__isnull=False, queue=current_app.conf.task_default_queue)
    assert {str(job.pk) for job in left} == {result.id for result in good}
    job = Job.objects.get(pk=bad.id)
    assert (job.state, job.error["message"][:30]) == ("scheduled", publisher.REFUSED[:30])
    assert int(redis_server.call("LLEN", current_app.conf.task_default_queue)) <= 20, "twice at the most"


@pytest.mark.servers
def test_who_is_not_let_in_by_rabbitmq_is_refused_no_message(use_broker, rabbitmq_server):
    use_broker(rabbitmq_server.url.replace("guest:guest@", "guest:wrong@"))
    try:
        for _ in range(3):
            tasks.noop.delay()
        assert publisher.breaker.is_open
        assert Job.objects.filter(dispatched_at=None, state="ready", error__isnull=True).count() == 3
        relay = Relay()
        relay.run_once()
        assert "ACCESS_REFUSED" in str(relay.trouble)
    finally:
        publisher.breaker.closed_again = 0.0


@pytest.mark.servers
def test_redis_flushed_with_published_jobs(use_broker, redis_server):
    use_broker(redis_server.url)
    results = tasks.effect.delay_many([(f"k{n}",) for n in range(200)])
    assert not Job.objects.filter(dispatched_at=None).exists()
    redis_server.call("FLUSHALL")
    with Worker():
        wait_ended(*[result.id for result in results], timeout=40)
    assert effects() == {f"k{n}": 1 for n in range(200)}


@pytest.mark.servers
def test_a_message_that_the_broker_refuses_stops_nobody(use_broker, rabbitmq_server):
    """Somebody declared a queue with other arguments: RabbitMQ closes the channel at our declaration."""
    use_broker(rabbitmq_server.url)
    with current_app.connection_for_write() as connection:
        Queue("odd", Exchange("odd"), routing_key="odd", durable=False)(connection.default_channel).declare()
    before = [tasks.effect.delay(f"before{n}") for n in range(3)]
    many = [tasks.effect.apply_async((name,), queue=queue, countdown=0.5) for name, queue in MIXED]
    with Worker():
        good = [result for result, (_, queue) in zip(many, MIXED, strict=True) if queue is None]
        wait_ended(*[result.id for result in [*before, *good]])
    refused = Job.objects.get(queue="odd")
    assert (refused.state, refused.lease) == ("scheduled", 0)
    assert "PRECONDITION" in refused.error["message"] or "inequivalent" in refused.error["message"]
    assert set(effects().values()) == {1}
    assert len(effects()) == 9


MIXED = [("a", None), ("b", None), ("c", None), ("refused", "odd"), ("d", None), ("e", None), ("f", None)]


@pytest.mark.servers
def test_rabbitmq_queue_purged_with_published_jobs(use_broker, rabbitmq_server):
    use_broker(rabbitmq_server.url)
    results = tasks.effect.delay_many([(f"k{n}",) for n in range(50)])
    with current_app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge(current_app.conf.task_default_queue) == 50
    with Worker():
        wait_ended(*[result.id for result in results], timeout=40)
    assert effects() == {f"k{n}": 1 for n in range(50)}


@pytest.mark.servers
def test_a_task_longer_than_the_visibility_timeout_is_not_even_delivered_twice(use_broker, redis_server):
    """Its message is acknowledged while it runs: it has done its work, and the row is the truth."""
    use_broker(redis_server.url, visibility_timeout=4, unacked_restore_interval=1, unacked_restore_throttle=1)
    with Worker() as first, Worker() as second:
        result = tasks.slow.delay("a", 10)
        [job] = wait_ended(result.id)
        assert "a duplicate message" not in first.text() + second.text()
    assert (job.state, job.lease) == ("succeeded", 1)
    assert effects() == {"a": 1}


@pytest.mark.core
def test_database_connections_are_kept_between_tasks():
    if connection.vendor != "postgresql":
        pytest.skip("asks PostgreSQL for its backend")
    with Worker(concurrency=1):
        jobs = wait_ended(*[tasks.backend_pid.delay().id for _ in range(5)])
        pids = {job.result for job in jobs}
        assert len(pids) == 1
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pids.pop()])
        [job] = wait_ended(tasks.effect.delay("after").id)
        assert (job.state, job.lease) == ("succeeded", 1)
    assert effects() == {"after": 1}


@pytest.mark.core
def test_a_soft_limit_in_mid_query_leaves_no_broken_connection():
    if connection.vendor != "postgresql":
        pytest.skip("sleeps in PostgreSQL")
    with Worker(concurrency=1):
        limited = tasks.sleeps_in_the_database.delay("never")
        after = tasks.effect.delay("after")
        [first, second] = wait_ended(limited.id, after.id)
    assert (first.state, first.error["type"]) == ("failed", "SoftTimeLimitExceeded")
    assert second.state == "succeeded"
    assert effects() == {"after": 1}


@pytest.mark.core
@pytest.mark.parametrize("queries", [0, 1], ids=["at the completion", "between two queries"])
def test_a_connection_killed_in_mid_body_runs_the_job_again(tmp_path, queries):
    if connection.vendor != "postgresql":
        pytest.skip("terminates a PostgreSQL backend")
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=1):
        result = tasks.gated.delay("a", str(started), str(gate), queries)
        wait_for(started.exists, 20, "the body runs")
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE state = 'idle in transaction' AND datname = current_database()"
            )
        gate.touch()
        [job] = wait_ended(result.id)
    assert (job.state, job.node_losses, job.crashes, job.retries) == ("succeeded", 1, 0, 0)
    assert effects() == {"a": 1}


@pytest.mark.core
def test_a_child_paused_at_the_commit_is_not_disturbed(tmp_path):
    """A paused process on a live node keeps its job: nobody runs it a second time."""
    with Worker(concurrency=1, sync="before_commit=pause") as worker:
        result = tasks.effect.delay("a")
        wait_reached(worker.directory, "before_commit")
        wait_beats(worker.node.pk)
        wait_state(result.id, "running")
        (worker.directory / "before_commit.go").touch()
        [job] = wait_ended(result.id)
    assert (job.lease, job.crashes, job.node_losses) == (1, 0, 0), job.errors
    assert effects() == {"a": 1}
