"""Results without a server: a job's row is what Celery's result backend says of it."""

from __future__ import annotations

import datetime
import os
import resource
import threading
import uuid
from decimal import Decimal

import celery.exceptions
import pytest
from celery import current_app, group, shared_task, states
from celery.contrib.abortable import AbortableAsyncResult, AbortableTask
from celery.result import AsyncResult, GroupResult, denied_join_result
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import Task, store
from jobs.contrib.listening.notifications import Notifications
from jobs.contrib.operations import by_hand
from jobs.contrib.pruning.prune import Prune
from jobs.contrib.results.backend import Backend
from jobs.contrib.results.listener import ResultListener
from jobs.errors import TaskExited, TaskOutOfMemory
from jobs.lifecycle import transitions
from jobs.maintenance import clock
from jobs.models import Job
from jobs.models.values import Repr
from jobs.store.databases import apart, side
from tests import tasks
from tests.helpers.concurrency import Elsewhere
from tests.helpers.gates import once_only, wait_for_file
from tests.helpers.harness import Worker, claim, deliver, in_body, run
from tests.helpers.rows import MALFORMED, make
from tests.helpers.servers import fair, wait_for
from tests.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _node(node):
    pass


@pytest.fixture(autouse=True)
def _forgetful():
    """Nothing comes from the memory of an earlier test."""
    current_app.backend._cache.clear()


def stored() -> dict:
    with side() as database:
        return dict(database.execute("SELECT id, meta FROM jobs_stored_result"))


def ended(task, *args, **kwargs) -> AsyncResult:
    result = task.delay(*args, **kwargs)
    deliver(result)
    return AsyncResult(result.id)


# What a row says


def test_it_is_the_backend_that_the_settings_name():
    assert type(current_app.backend) is Backend


def exists(result):
    """``AsyncResult.exists()`` of Celery 5.7."""
    return result.backend.task_result_exists(result.id)


def test_a_job_that_succeeded():
    result = ended(tasks.add, 1, y=2)
    assert (result.state, result.result, result.get(timeout=5)) == ("SUCCESS", 3, 3)
    assert result.ready()
    assert result.successful()
    assert not result.failed()
    assert exists(result)
    job = Job.objects.get()
    assert (result.date_done, result.traceback) == (job.finished_at, None)
    assert (result.name, result.args, result.kwargs) == ("tests.tasks.add", [1], {"y": 2})
    assert (result.queue, result.retries, result.worker) == ("celery", 0, "here")


def test_a_job_that_failed():
    result = ended(tasks.raises, "wrong")
    assert (result.state, result.failed(), result.successful()) == ("FAILURE", True, False)
    assert "ValueError: wrong" in result.traceback
    assert type(result.info) is ValueError
    with pytest.raises(ValueError, match="^wrong$"):
        result.get(timeout=5)
    assert str(result.get(timeout=5, propagate=False)) == "wrong"


class Refused(Exception):
    def __init__(self, code, why):
        super().__init__(code, why)
        self.code = code

    def __str__(self):
        return f"refused with {self.code}"


@shared_task
def refuses(how):
    if how == "key":
        raise KeyError("x")
    if how == "object":
        raise Refused(object(), "no")
    raise Refused(402, "no")


@pytest.mark.parametrize(
    ("how", "kind", "args"),
    [
        ("own", Refused, (402, "no")),
        ("key", KeyError, ("x",)),
        ("object", Refused, None),
    ],
)
def test_an_exception_is_made_again_from_its_class_and_its_arguments(how, kind, args):
    result = ended(refuses, how)
    with pytest.raises(kind) as caught:
        result.get(timeout=5)
    assert type(caught.value) is kind
    if args:
        assert caught.value.args == args
    else:
        assert caught.value.args[0].startswith("<object object")


@pytest.mark.parametrize(("how", "kind"), [("exit", TaskExited), ("memory", TaskOutOfMemory)])
def test_no_failure_ends_the_process_of_who_waits(how, kind):
    with pytest.raises(kind):
        ended(tasks.raises, how).get(timeout=5)


def test_a_job_on_its_way(monkeypatch):
    result = tasks.retries.delay("a", 2)
    assert (result.state, result.info, exists(result)) == ("PENDING", None, True)
    deliver(result)
    assert (result.state, type(result.info), result.retries) == ("RETRY", celery.exceptions.Retry, 1)
    by_hand.run_now(Job.objects.get().pk, "default")
    job = claim(result.id)
    assert (result.state, result.info) == ("STARTED", {"hostname": "here"})
    with pytest.raises(celery.exceptions.TimeoutError):
        result.get(timeout=0.05)
    run(job)
    assert (result.state, result.ready()) == ("RETRY", False)


def test_a_retry_shows_what_it_failed_with():
    result = ended(tasks.autoretries, "a")
    assert (result.state, repr(result.result)) == ("RETRY", "ValueError('again')")
    assert "again" in result.traceback


VALUES = [
    None,
    [1, "a", None, {"b": 1.5}],
    datetime.date(2026, 1, 2),
    datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    datetime.time(3, 4),
    datetime.timedelta(seconds=1.5),
    Decimal("1.10"),
    uuid.UUID(int=5),
    b"\0\xff",
]


def test_results_are_of_the_types_that_arguments_may_be():
    assert ended(tasks.gives_back, *VALUES).get(timeout=5) == VALUES


def test_what_is_not_json_is_its_repr_and_goes_no_further():
    value = ended(tasks.returns_object).get(timeout=5)
    assert isinstance(value, Repr)
    assert value.startswith("<object object")
    with pytest.raises(TypeError, match=r"args\[0\] is only the repr"):
        tasks.noop.delay(value)


def test_an_id_in_hex_finds_its_job():
    key = uuid.uuid4()
    result = tasks.add.apply_async((1, 2), task_id=key.hex)
    deliver(result)
    assert AsyncResult(key.hex).get(timeout=5) == 3
    assert AsyncResult(str(key)).get(timeout=5) == 3


def test_every_database_is_looked_in(second, node):
    node.save(using=second, force_insert=True)
    result = tasks.gives_back.apply_async((1,), using="second")
    other = tasks.add.delay(1, 2)
    for each in (result, other):
        deliver(each)
    assert result.get(timeout=5) == [1]
    assert other.get(timeout=5) == 3
    assert GroupResult("g", [result, other]).join(timeout=5) == [[1], 3]


@pytest.mark.parametrize("values", MALFORMED, ids=str)
@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "ready"])
def test_a_row_that_somebody_edited_is_read_all_the_same(state, values):
    job = make(state, retries=1)
    Job.objects.filter(pk=job.pk).update(**values)
    assert AsyncResult(str(job.pk)).state in states.ALL_STATES


def test_nothing_is_known_of_an_id_that_nobody_has():
    for key in (str(uuid.uuid4()), "no-uuid"):
        result = AsyncResult(key)
        assert (result.state, result.result, exists(result)) == ("PENDING", None, False)
        with pytest.raises(celery.exceptions.TimeoutError):
            result.get(timeout=0.02)


# Ends that are decided outside of the body


def ends_by_expiry():
    result = tasks.noop.apply_async(expires=timezone.now() - datetime.timedelta(seconds=1))
    clock.tick()
    return result


def ends_by_hand():
    result = tasks.noop.delay()
    assert transitions.cancel(uuid.UUID(result.id), "default")
    return result


def ends_by_crashes():
    result = tasks.noop.apply_async()
    Job.objects.update(crashes=2)
    job = claim(result.id)
    assert transitions.crash(job, transitions.error_entry("WorkerLostError", "signal 9", attempt=1), 3)
    return result


def ends_by_loss():
    result = tasks.noop.delay()
    assert transitions.lose(claim(result.id), transitions.error_entry("NodeLost", "the worker died", attempt=1), 1)
    return result


def ends_by_ignore():
    return ended(tasks.steps_out, "a", "ignore")


@pytest.mark.parametrize(
    ("end", "state", "kind", "text"),
    [
        (ends_by_expiry, "REVOKED", "TaskRevokedError", "expires_at"),
        (ends_by_hand, "REVOKED", "TaskRevokedError", "by hand"),
        (ends_by_crashes, "FAILURE", "WorkerLostError", "signal 9"),
        (ends_by_loss, "FAILURE", "NodeLost", "the worker died"),
        (ends_by_ignore, "REVOKED", "TaskRevokedError", "not needed"),
    ],
)
def test_an_end_outside_of_the_body_is_seen_by_who_waits(end, state, kind, text):
    result = end()
    assert result.state == state
    with pytest.raises(Exception, match=text) as caught:
        result.get(timeout=5)
    assert type(caught.value).__name__ == kind


def test_who_waits_hears_of_a_cancel_at_once():
    result = tasks.noop.delay()

    def cancel():
        transitions.cancel(uuid.UUID(result.id), "default")
        connections.close_all()

    timer = threading.Timer(0.3, cancel)
    timer.start()
    began = fair()
    with pytest.raises(celery.exceptions.TaskRevokedError):
        result.get(timeout=20)
    timer.join()
    assert fair() - began < 5


# What it costs


def test_waiting_looks_more_and_more_rarely(monkeypatch):
    result, pauses = tasks.noop.delay(), []
    backend = current_app.backend
    monkeypatch.setattr(backend, "_sleep", lambda seconds: pauses.append(seconds) or len(pauses) < 20 or 1 / 0)
    monkeypatch.setattr(
        "jobs.contrib.results.listener.ResultListener.sleep", lambda listener, seconds, ids: backend._sleep(seconds)
    )
    with pytest.raises(ZeroDivisionError), CaptureQueriesContext(connection) as queries:
        result.get()
    assert len(queries) == len(pauses) == 20
    assert pauses[0] == 0.005
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.5


@pytest.mark.parametrize(
    ("task", "args"),
    [(tasks.add, (1, 2)), (refuses, ("own",)), (tasks.retries, ("a", 1))],
    ids=["add", "refuses", "retries"],
)
def test_celerys_tracer_writes_nothing_of_a_job(task, args, monkeypatch):
    """Also with ``task_track_started``."""
    body = task._get_current_object()
    monkeypatch.setattr(body, "track_started", True)
    deliver(body.delay(*args))
    assert stored() == {}


def test_a_finished_job_is_read_by_few_statements():
    results = [ended(tasks.add, n, n) for n in range(5)]
    current_app.backend._cache.clear()
    with CaptureQueriesContext(connection) as queries:
        assert GroupResult("g", results).join_native(timeout=5) == [0, 2, 4, 6, 8]
    assert len(queries) == 3  # states, rows, children


def test_a_connection_that_died_is_replaced():
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no server")
    result = ended(tasks.add, 1, 2)
    with apart("default") as other, other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.connection.info.backend_pid])
    assert result.get(timeout=5) == 3


# Tasks that are no jobs


def trace(task, *args, task_id):
    """As a worker runs a task that is no job."""
    from celery.app.trace import build_tracer

    request = {"id": task_id, "args": args, "kwargs": {}, "delivery_info": {}, "is_eager": False}
    build_tracer(task.name, task, app=current_app._get_current_object())(task_id, args, {}, request)
    return AsyncResult(task_id)


@shared_task(base=celery.Task)
def stock_adds(x, y):
    return {"sum": x + y, "at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)}


def test_a_stock_task_has_its_result_in_a_table_of_its_own():
    result = trace(stock_adds, 1, 2, task_id="any-id")
    at = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    assert result.get(timeout=5) == {"sum": 3, "at": at}
    assert (result.state, list(stored())) == ("SUCCESS", ["any-id"])
    assert abs(timezone.now() - result.date_done) < datetime.timedelta(seconds=60)
    result.forget()
    assert (result.state, stored()) == ("PENDING", {})


@shared_task(base=celery.Task)
def stock_raises(key):
    raise KeyError(key)


def test_a_stock_task_that_failed():
    result = trace(stock_raises, "k", task_id=str(uuid.uuid4()))
    assert (result.state, "KeyError" in result.traceback) == ("FAILURE", True)
    with pytest.raises(KeyError, match="k"):
        result.get(timeout=5)


def test_what_a_stock_task_stores_in_a_transaction_is_not_rolled_back_with_it():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        current_app.backend.store_result("x", {"done": 1}, "PROGRESS")
        raise ZeroDivisionError()
    assert AsyncResult("x").info == {"done": 1}
    current_app.backend.store_result("x", {"done": 2}, "PROGRESS")
    assert (AsyncResult("x").state, AsyncResult("x").info) == ("PROGRESS", {"done": 2})


def test_stored_results_expire(monkeypatch):
    backend = current_app.backend
    for expires, key in ((60, "later"), (-1, "now"), (None, "never")):
        monkeypatch.setattr(backend, "expires", expires)
        backend.store_result(key, 1, "SUCCESS")
    Prune().run_once()
    assert set(stored()) == {"later", "never"}


def test_a_group_is_saved_and_restored():
    results = group(tasks.add.s(n, n) for n in range(3)).apply_async()
    results.save()
    for each in results:
        deliver(each)
    again = GroupResult.restore(results.id)
    assert again.ready()
    assert again.successful()
    assert again.join(timeout=5) == again.get(timeout=5) == [0, 2, 4]
    again.delete()
    assert GroupResult.restore(results.id) is None


def test_a_group_of_which_one_fails():
    results = group(tasks.add.s(1, 2), tasks.raises.s("wrong")).apply_async()
    for each in results:
        deliver(each)
    assert (results.ready(), results.failed(), results.completed_count()) == (True, True, 1)
    with pytest.raises(ValueError, match="wrong"):
        results.get(timeout=5)


def test_children_are_the_calls_of_the_body():
    result = ended(tasks.enqueues, "a")
    [child] = result.children
    assert child.id == result.get(timeout=5)
    assert list(ended(tasks.noop).children) == []


@shared_task(bind=True, trail=True)
def calls_a_group(self):
    return group(tasks.add.s(n, n) for n in range(2))()


def test_a_task_may_return_a_result_and_its_tree_is_collected():
    result = ended(calls_a_group)
    for job in Job.objects.filter(state="ready"):
        deliver(AsyncResult(str(job.pk)))
    [children] = result.children
    assert isinstance(children, GroupResult)
    assert result.get(timeout=5)[0][0] == children.id
    assert [value for each, value in result.collect() if not each.children] == [0, 2]


def test_what_follows_a_failed_step_of_a_chain_is_seen_to_have_failed():
    last = (tasks.raises.si("wrong") | tasks.add.si(1, 2) | tasks.add.si(3, 4)).apply_async()
    deliver(last.parent.parent)
    with pytest.raises(ValueError, match="wrong"):
        last.get(timeout=5)


# What a running job says of itself


@shared_task(bind=True)
def progresses(self, started="", gate=""):
    """Says how far it is, in the transaction of its body."""
    Effect.objects.create(key="progress")
    for done in (1, 2):
        self.update_state(state="PROGRESS", meta={"done": done})
    if gate:
        once_only(started)
        wait_for_file(gate)
    return "done"


@pytest.mark.parametrize("atomic", [True, False])
def test_a_body_says_how_far_it_is(atomic, monkeypatch, tmp_path):
    monkeypatch.setattr(progresses._get_current_object(), "atomic", atomic)
    result, seen = progresses.delay(), []
    update = type(progresses._get_current_object()).update_state

    def look(*args, **kwargs):
        update(*args, **kwargs)
        thread = threading.Thread(target=lambda: [seen.append((result.state, result.info)), connections.close_all()])
        thread.start()
        thread.join()

    monkeypatch.setattr(type(progresses._get_current_object()), "update_state", look)
    deliver(result)
    assert seen == [("PROGRESS", {"done": 1}), ("PROGRESS", {"done": 2})]
    assert (result.state, result.get(timeout=5)) == ("SUCCESS", "done")


def test_the_next_run_of_a_job_says_nothing_yet():
    job = claim(tasks.noop.delay().id)
    result = AsyncResult(str(job.pk))
    # As a thread of the body does.
    current_app.backend.store_result(result.id, {"done": 1}, "PROGRESS")
    assert result.state == "PROGRESS"
    transitions.hand_back(job, 0)
    assert result.state == "PENDING"
    claim(job.pk)
    assert result.state == "STARTED"


@shared_task(bind=True)
def claims_to_be_done(self):
    self.update_state(state="SUCCESS", meta="not yet")
    raise ValueError("after all")


def test_a_body_cannot_say_that_it_is_over():
    result = claims_to_be_done.delay()
    deliver(result)
    assert (result.state, stored()) == ("FAILURE", {})


def test_nobody_says_of_a_job_that_waits_or_ended_what_its_row_does_not():
    result = tasks.noop.delay()
    for state in ("PROGRESS", "SUCCESS"):
        current_app.backend.store_result(result.id, "x", state)
        assert result.state == "PENDING"
    assert stored() == {}


def test_another_backend_is_told_in_celerys_own_way(monkeypatch):
    from celery.backends.cache import CacheBackend

    backend = CacheBackend(current_app._get_current_object(), backend="memory")
    monkeypatch.setattr(progresses._get_current_object(), "backend", backend)
    seen = []
    monkeypatch.setattr(f"{__name__}.once_only", lambda path: seen.append(backend.get_task_meta(result.id)))
    monkeypatch.setattr(f"{__name__}.wait_for_file", lambda path: None)
    result = progresses.delay("x", "y")
    deliver(result)
    assert (seen[0]["status"], seen[0]["result"]) == ("PROGRESS", {"done": 2})
    assert backend.get_task_meta(result.id)["status"] == "SUCCESS"


# Who has the row


def test_a_job_is_waited_for():
    job = Job.objects.get(pk=tasks.add.delay(1, 2).id)
    with pytest.raises(TimeoutError, match="is ready, and not over after 0.05 s"):
        job.wait(0.05)
    deliver(AsyncResult(str(job.pk)))
    assert job.wait(5) == 3
    assert (job.state, job.result) == ("succeeded", 3)
    with pytest.raises(ValueError, match="wrong"):
        Job.objects.get(pk=ended(tasks.raises, "wrong").id).wait(5)
    with pytest.raises(celery.exceptions.TaskRevokedError):
        make("cancelled").wait(5)
    gone = make("ready")
    Job.objects.filter(pk=gone.pk).delete()
    with pytest.raises(Job.DoesNotExist):
        gone.wait(5)


def test_a_job_of_a_signature_that_was_called_twice_waits_for_itself():
    signature = tasks.noop.si()
    signature.freeze()
    deliver(signature.apply_async())
    signature.apply_async()
    with pytest.raises(TimeoutError):
        Job.objects.get(state="ready").wait(timeout=0.1)


def test_in_a_task_nobody_waits_for_a_row():
    with denied_join_result(), pytest.raises(RuntimeError, match="Never call"):
        make("succeeded").wait()


# With real workers


@shared_task
def gets():
    return tasks.add.delay(1, 2).get(timeout=5)


@pytest.mark.slow
@pytest.mark.core
def test_results_of_a_worker(tmp_path):
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=2, JOBS_TEST_CELERY='{"track_started": true}'):
        assert tasks.add.delay(1, 2).get(timeout=20) == 3
        with pytest.raises(Refused) as caught:
            refuses.delay("own").get(timeout=20)
        assert caught.value.code == 402
        with pytest.raises(celery.exceptions.TimeLimitExceeded):
            tasks.never_ends.delay("late").get(timeout=20)
        with pytest.raises(RuntimeError, match="Never call result.get"):
            gets.delay().get(timeout=20)
        result = progresses.delay(str(started), str(gate))
        in_body(result.id, started)
        # The body's transaction is open.
        wait_for(lambda: result.state == "PROGRESS", 10, "it says how far it is")
        assert result.info == {"done": 2}
        gate.touch()
        assert result.get(timeout=20) == "done"


@shared_task(base=celery.Task, bind=True)
def stock_progresses(self, started, gate):
    with transaction.atomic():
        Effect.objects.create(key="stock")
        self.update_state(state="PROGRESS", meta={"done": 1})
        once_only(started)
        wait_for_file(gate)


@pytest.mark.core
def test_stock_tasks_of_a_worker(tmp_path):
    """Beside jobs."""
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=2):
        assert stock_adds.delay(1, 2).get(timeout=20)["sum"] == 3
        with pytest.raises(KeyError):
            stock_raises.delay("k").get(timeout=20)
        result = stock_progresses.delay(str(started), str(gate))
        wait_for(started.exists, 20, "it runs")
        assert (result.state, result.info) == ("PROGRESS", {"done": 1})
        gate.touch()
        assert result.get(timeout=20) is None


class Abortable(AbortableTask, Task):
    abstract = True


@shared_task(bind=True, base=Abortable)
def is_aborted(self, aborts=False):
    if aborts:
        AbortableAsyncResult(self.request.id).abort()
    return self.is_aborted()


@pytest.mark.parametrize("when", ["never", "before", "while it runs"])
def test_a_task_is_aborted(when):
    result = is_aborted.delay(when == "while it runs")
    if when == "before":
        AbortableAsyncResult(result.id).abort()
        assert result.state == "PENDING"
    deliver(result)
    assert result.get() is (when != "never")


@pytest.mark.database
def test_who_waits_long_is_told_of_the_end(tmp_path, monkeypatch):
    """The next look would come much later."""
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL rings")
    monkeypatch.setattr("jobs.contrib.results.backend.GROWTH", 1000)
    with Worker(concurrency=2), apart("default") as own:
        started, gate = tmp_path / "started", tmp_path / "gate"
        result = tasks.gated.delay("a", str(started), str(gate))
        in_body(result.id, started)
        waiter = Elsewhere(lambda: result.get(timeout=60, interval=50))
        notifications = Notifications(own, "jobs_ended")

        def is_told() -> bool:
            return notifications.hears(0.5, [tasks.noop.delay().id])

        wait_for(is_told, 20, "the worker knows that somebody waits")
        gate.touch()
        assert waiter.result(20) is None


def test_a_process_with_very_many_open_files_waits_for_results():
    """``select()`` knows a thousand."""
    if not store.of("default").has_notify:
        pytest.skip("nothing tells other sessions of ends")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with ResultListener("default") as listener:
            listener.sleep(0.05, ["x"])
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
