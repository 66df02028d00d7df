"""Bodies for the tests. Each leaves a ledger row; some misbehave."""

import atexit
import ctypes
import datetime
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import celery
import psycopg
from celery import group, shared_task, signals
from celery.contrib.abortable import AbortableAsyncResult, AbortableTask
from celery.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError, connection, transaction

from jobs import Cancel, Snooze, Task, guard, lock, once
from jobs import effect as effect_of
from jobs import signals as job_signals
from jobs.calling import request
from jobs.conf import syncpoints
from jobs.lifecycle.board import board
from shop import payments
from tests import event_tasks  # noqa: F401
from tests.models import Effect, Order


def wait_for_file(path: str, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not Path(path).exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


def once_only(path: str) -> bool:
    """True in the first process that asks."""
    try:
        Path(path).open("x").write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


@shared_task
def effect(key, note=""):
    Effect.objects.create(key=key, pid=os.getpid(), note=note)
    return key


@shared_task(atomic=False)
def naps(key):
    time.sleep(0.5)


@shared_task
def lingers(key, seconds=0.02):
    """Long enough for a second run to meet the first one."""
    Effect.objects.create(key=key, pid=os.getpid())
    time.sleep(seconds)


@shared_task
def works(key, seconds=0.05):
    """Query after query for so long."""
    Effect.objects.create(key=key, pid=os.getpid())
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        Effect.objects.first()
        time.sleep(0.01)


@shared_task
def noop(*args, **kwargs):
    return None


@shared_task
def add(x, y):
    return x + y


@shared_task
def gated(key, started, gate, queries=0):
    """Leave the effect, then hold the transaction open until the gate file exists; with ``queries`` go on after it."""
    Effect.objects.create(key=key, pid=os.getpid())
    if once_only(started):
        wait_for_file(gate)
    for _ in range(queries):
        Effect.objects.first()


@shared_task(bind=True)
def gated_by_lease(self, key, directory):
    """Each run says that it has begun, and holds its transaction open until its own gate file exists."""
    Effect.objects.create(key=key, pid=os.getpid())
    Path(directory, f"started-{self.job.lease}").touch()
    wait_for_file(f"{directory}/gate-{self.job.lease}")


@shared_task(atomic=False)
def slow(key, seconds):
    """Long, without a transaction that lasts as long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.05)
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(atomic=False)
def waits(key, started, gate):
    once_only(started)
    wait_for_file(gate)
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(atomic=False)
def holds_others_up(key, started, gate):
    """Short, but for one that has others behind it in its claim."""
    if any(slot.batch for slot in board.occupied() if slot.pid == os.getpid()) and once_only(started):
        wait_for_file(gate)
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(idempotency_key="welcome:{user_id}")
def welcomes(user_id, how=""):
    Effect.objects.create(key=f"welcome:{user_id}", pid=os.getpid())
    if how == "fails":
        raise ValueError(how)
    return object() if how == "returns an object" else f"welcome {user_id}"


@shared_task(idempotency_key="welcome:{user_id}", lock="user:{user_id}")
def welcomes_alone(user_id):
    Effect.objects.create(key=f"welcome:{user_id}", pid=os.getpid())
    return f"welcome {user_id}"


def _summary(self, day, how=""):
    if how == "retries":
        raise self.retry(countdown=0)
    if how == "fails":
        raise ValueError(how)
    Effect.objects.create(key=f"summary:{day}", pid=os.getpid())


def _unique(name, **options):
    return shared_task(bind=True, name=f"tests.tasks.{name}", unique="{day}", **options)(_summary)


summary = _unique("summary")
summary_to_the_end = _unique("summary_to_the_end", unique_until="finished")
summary_for_a_while = _unique("summary_for_a_while", unique_for=60)


@shared_task(idempotency_key="marked:{key}")
def marked(key):
    Effect.objects.create(key=key)


@shared_task(unique="sole:{key}")
def sole(key):
    Effect.objects.create(key=key)


@shared_task
def guards(pk):
    with guard(Order, pk=pk):
        pass


@shared_task(autoretry_for=(Order.DoesNotExist,))
def guards_patiently(pk):
    with guard(Order, pk=pk):
        pass


@shared_task
def once_only_effect(key):
    with once("effect", key) as first:
        if first:
            Effect.objects.create(key=key, pid=os.getpid())
    return first


@shared_task(autoretry_for=(Exception,))
def snoozes(key, seconds):
    Effect.objects.create(key=key, pid=os.getpid())
    raise Snooze(seconds, "not yet")


def shrug_off_sigterm(started):
    """Once."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if once_only(started):
        time.sleep(60)
    signal.signal(signal.SIGTERM, before)


@shared_task
def ignores_sigterm(key, started):
    shrug_off_sigterm(started)
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(base=celery.Task)
def ignores_sigterm_as_stock(key, started):
    shrug_off_sigterm(started)


@shared_task
def always_kills(key):
    Effect.objects.create(key=key, pid=os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


@shared_task
def kills_once(key, marker):
    Effect.objects.create(key=key, pid=os.getpid())
    if once_only(marker):
        os.kill(os.getpid(), signal.SIGKILL)


@shared_task
def raises(kind, key=""):
    if key:
        Effect.objects.create(key=key, pid=os.getpid())
    if kind == "memory":
        raise MemoryError("no memory")
    if kind == "exit":
        sys.exit(3)
    if kind == "nul":
        raise ValueError("a\0b \ud800")
    raise ValueError(kind)


@shared_task(bind=True, max_retries=3, default_retry_delay=0)
def retries(self, key, times):
    Effect.objects.create(key=key, pid=os.getpid(), note=str(self.request.retries))
    if self.request.retries < times:
        raise self.retry(countdown=0.1)
    return self.request.retries


@shared_task(autoretry_for=(ValueError,), max_retries=2, retry_backoff=1, retry_jitter=False, retry_backoff_max=1)
def autoretries(key):
    Effect.objects.create(key=key, pid=os.getpid())
    raise ValueError("again")


@shared_task(bind=True, default_retry_delay=0)
def retries_quietly(self, key):
    Effect.objects.create(key=key, note=str(self.request.retries))
    if self.request.retries == 0:
        self.retry(countdown=0, throw=False)
    return "done"


@shared_task(bind=True)
def counts_down(self, n):
    """Calls itself: only the outermost call is a run."""
    Effect.objects.create(key=f"down-{n}")
    return 0 if n == 0 else self(n - 1) + 1


@shared_task(time_limit=2)
def never_ends(key):
    Effect.objects.create(key=key)
    time.sleep(60)


@shared_task(soft_time_limit=1)
def sleeps_in_the_database(key):
    """The soft limit strikes in mid-query and leaves a connection that Django takes for usable."""
    Effect.objects.create(key=key)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(20)")


@shared_task
def backend_pid():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


@shared_task
def enqueues(key):
    """A job that makes a job: both or none."""
    Effect.objects.create(key=key)
    return effect.delay(f"{key}-child").id


@shared_task(base=celery.Task)
def stock(key):
    Effect.objects.create(key=key)


@shared_task(base=celery.Task)
def stock_waits(key, started, gate):
    once_only(started)
    wait_for_file(gate)
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(base=celery.Task)
def stock_sleeps(key):
    try:
        time.sleep(60)
    except SoftTimeLimitExceeded:
        Effect.objects.create(key=key)


@shared_task(base=Task)
def based(key):
    Effect.objects.create(key=key)


@shared_task
def hooked(key):
    """A hook of the project raises right after the COMMIT, out of atomic's exit."""
    from django.db import transaction

    def broken():
        raise RuntimeError("a hook of the project")

    Effect.objects.create(key=key)
    transaction.on_commit(broken)
    return "done"


@shared_task(bind=True)
def changes_course(self, key):
    Effect.objects.create(key=key)
    if key == "old":
        raise self.retry(args=("new",), countdown=5, queue="mail", priority=4)


@shared_task
def steps_out(key, outcome):
    from celery.exceptions import Ignore, Reject

    Effect.objects.create(key=key)
    if outcome == "ignore":
        raise Ignore("not needed any more")
    raise Reject("not here", requeue=outcome == "requeue")


@shared_task
def returns_object():
    return object()


@shared_task(atomic=False)
def manages_itself(key):
    Effect.objects.create(key=key)
    raise ValueError("after its own commit")


@shared_task(bind=True)
def replaces(self, key, *others):
    """Leave the effect, then let others do the rest: a task, a chain, a group or a chord."""
    Effect.objects.create(key=key, pid=os.getpid())
    return self.replace(celery.current_app.signature(others[0]))


@shared_task
def gather(results, key):
    Effect.objects.create(key=key, pid=os.getpid(), note=json.dumps(results)[:200])
    return results


@shared_task(max_retries=0)
def fails(key):
    raise LookupError(key)


@shared_task(bind=True)
def fails_first(self, key):
    if self.job.lease == 1:
        raise LookupError(key)
    return key


@shared_task(bind=True)
def fails_always(self, key, times):
    raise self.retry(exc=LookupError(key), max_retries=times, countdown=0.01)


class Abortable(AbortableTask, Task):
    abstract = True


@shared_task(bind=True, base=Abortable)
def is_aborted(self, aborts=False):
    if aborts:
        AbortableAsyncResult(self.request.id).abort()
    return self.is_aborted()


class OwnError(Exception):
    pass


@shared_task
def raises_its_own():
    raise OwnError("no", 7)


@shared_task
def errback_of_three(request, exc, traceback):
    Effect.objects.create(key=request.id, note=repr(exc))


@shared_task
def errback_of_one(key):
    Effect.objects.create(key=key)


@shared_task
def passes(value):
    return value


@shared_task
def shows_type(value):
    Effect.objects.create(key="type", note=repr(value))


@shared_task(atomic=False)
def effect_by_itself(key):
    Effect.objects.create(key=key)


@shared_task(bind=True)
def stops_its_chain(self):
    self.request.chain = None


@shared_task
def cancels_itself():
    raise Cancel("no need")


@shared_task
def raises_no_exception(name):
    import asyncio

    raise {"CancelledError": asyncio.CancelledError, "GeneratorExit": GeneratorExit}[name]("odd")


@shared_task(atomic=False)
def leaves_autocommit_off(key):
    connection.set_autocommit(False)
    Effect.objects.create(key=key)


@shared_task(atomic=False)
def leaves_its_transaction(key):
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    Effect.objects.create(key=key)


@shared_task(atomic=False)
def loses_its_link(key):
    Effect.objects.create(key=key)
    with suppress(OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@shared_task(bind=True)
def shows_request(self):
    return [self.request.headers["tenant"], self.request.time_limit, self.request.soft_time_limit]


@shared_task(bind=True, atomic=False)
def checks(self, key, started, seconds=60.0):
    """Long, and asks now and then whether to go on."""
    once_only(started)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        self.checkpoint()
        time.sleep(0.05)
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task
def takes_turns(key):
    """All bodies want the same row."""
    Order.objects.select_for_update().order_by("pk").first()
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task
def locks_and_waits(key, started, gate):
    Order.objects.select_for_update().get(key=key)
    once_only(started)
    wait_for_file(gate)


@shared_task
def locks_two(key, first, second):
    """A deadlock with a body that locks them the other way round."""
    for name in (first, second):
        Order.objects.select_for_update().get(key=name)
        time.sleep(0.02)
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task
def counts_and_adds(key):
    """Reads what others write: above READ COMMITTED only one of two at a time can commit."""
    order = Order.objects.order_by("pk").first()
    Effect.objects.count()
    time.sleep(0.02)
    order.save()
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(bind=True, atomic=False, lock="alone:{key}")
def alone(self, key, name, directory, seconds=0.05):
    """Leaves an effect of another name if somebody else of this key is inside."""
    inside = Path(directory, f"inside-{key}")
    try:
        inside.mkdir()
    except FileExistsError:
        Effect.objects.create(key=f"{name} was not alone")
    time.sleep(seconds)
    Effect.objects.create(key=name, pid=os.getpid(), note=str(self.lock_token))
    inside.rmdir()


@shared_task(bind=True, atomic=False, lock="gated:{key}", lock_ttl=60)
def gated_alone(self, key, name, started, gate):
    if once_only(started):
        wait_for_file(gate)
    Effect.objects.create(key=name, pid=os.getpid(), note=str(self.lock_token))


@shared_task(bind=True, lock="locked:{key}")
def locked(self, key):
    Effect.objects.create(key=key, note=str(self.lock_token))


@shared_task(lock=lambda key: f"locked:{key}")
def locks_in_its_body(key):
    with lock("body", key):
        Effect.objects.create(key=key)


class Unspeakable(Exception):
    """Cannot be pickled, and has no text."""

    def __init__(self):
        self.lock = threading.Lock()

    def __str__(self):
        raise ValueError("no text")


@shared_task(time_limit=20)
def misbehaves(key, how, marker=None):
    """Leave an effect, and then go wrong; with a marker only the first time."""
    Effect.objects.create(key=key, pid=os.getpid())
    if marker and not once_only(f"{marker}-{key}"):
        return
    match how:
        case "memory":
            raise MemoryError("no memory")
        case "exit":
            sys.exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "nul":
            raise ValueError("a\0b \ud800")
        case "unspeakable":
            raise Unspeakable
        case "ended":
            # Else the completion takes the COMMIT along.
            syncpoints.arm(lambda point: None)
            _end_at("_commit")
        case "ended_in_conflict":
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                _conflict()
        case "ended_in_rollback":
            _end_at("_rollback")
            raise ValueError(how)
        case "ended_in_function":
            connection.ensure_connection()
            connection.connection.create_function("strike", 0, lambda: os.kill(os.getpid(), signal.SIGTERM))
            with connection.cursor() as cursor:
                cursor.execute("SELECT strike()")
        case "recursion":
            misbehaves.run(key + "-", how)
        case "deadline":
            raise TimeoutError("the provider does not answer")
        case _:
            raise ValueError(how)


@shared_task
def returns_nonsense(key):
    Effect.objects.create(key=key, pid=os.getpid())
    return {1: {2, 3}, "lock": threading.Lock(), "text": "a\0b \ud800"}


@shared_task(soft_time_limit=1, time_limit=20)
def sleeps_softly(key, where="python"):
    _sleep(key, where)


@shared_task(soft_time_limit=1, autoretry_for=(SoftTimeLimitExceeded,), default_retry_delay=0)
def late_once(key, late):
    if once_only(late):
        time.sleep(60)
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(soft_time_limit=1, time_limit=20, atomic=False)
def sleeps_bare(key, where="autocommit"):
    _sleep(key, where)


@shared_task(soft_time_limit=1, time_limit=20)
def handles_its_limit(key, how):
    _handle_limit(key, how)


@shared_task(soft_time_limit=1, time_limit=20, atomic=False)
def handles_its_limit_bare(key):
    _handle_limit(key, "returns")


@shared_task
def fails_in_a_stream(key):
    """The traceback keeps the query open, which has psycopg's lock."""
    with connection.cursor() as cursor:
        rows = cursor.stream("SELECT generate_series(1, 1000)")
        raise ValueError(next(rows))


def _handle_limit(key, how):
    Effect.objects.create(key=key, pid=os.getpid())
    try:
        if how == "conflict":
            time.sleep(60)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")
    except SoftTimeLimitExceeded:
        if how == "queries":
            Effect.objects.filter(key=key).update(note="too late")
        if how == "conflict":
            _conflict()


@shared_task(time_limit=2)
def sleeps_hard(key, where="python"):
    _sleep(key, where)


def _sleep(key, where):
    """Meet a limit in mid-body, in mid-query with a lock, or inside the COMMIT (see ``Database.slow_commits``)."""
    if where != "autocommit":
        Effect.objects.create(key=key, note="slow commit" if where == "commit" else "")
    if where == "query":
        Order.objects.select_for_update().order_by("pk").first()
    if where in ("query", "autocommit"):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")
    if where == "python":
        time.sleep(60)


@shared_task
def commits_slowly(key):
    """The COMMIT takes its time (see ``Database.slow_commits``)."""
    Effect.objects.create(key=key, pid=os.getpid(), note="slow commit")


@shared_task(autoretry_for=(TimeoutError,), max_retries=2, default_retry_delay=0, retry_backoff=False)
def gives_up(key, cured=None):
    Effect.objects.create(key=key, pid=os.getpid())
    if not (cured and Path(cured).exists()):
        raise TimeoutError("not yet")


def _conflict():
    with connection.cursor() as cursor:
        cursor.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")


conflicts: list[str] = []


def meet_conflict(key, error):
    Effect.objects.create(key=key)
    if conflicts and conflicts.pop():
        raise OperationalError("in favour of another") from error


@shared_task
def conflicting(key):
    meet_conflict(key, psycopg.errors.DeadlockDetected())


@shared_task(autoretry_for=(Exception,), max_retries=2, default_retry_delay=0)
def conflicting_retried(key):
    meet_conflict(key, psycopg.errors.SerializationFailure())


@signals.celeryd_after_setup.connect
def forget(sender, instance, **kwargs):
    """A worker of the release before, which does not know this task."""
    instance.app.tasks.pop(os.environ.get("JOBS_TEST_FORGET"), None)


if "JOBS_TEST_HANGS_AT_EXIT" in os.environ:
    # Before the companion is there, so it comes after the companion's end, as billiard's does.
    atexit.register(time.sleep, 60)

if "JOBS_TEST_CONSUMER_TIMEOUT" in os.environ:
    request.CONSUMER_TIMEOUT = float(os.environ["JOBS_TEST_CONSUMER_TIMEOUT"])


def _end_at(name):
    """SIGTERM just before the next COMMIT or ROLLBACK: Django's cleanup meets an open transaction.

    PostgreSQL's driver complains of that; SQLite's commits.
    """
    end = getattr(connection, name)
    setattr(connection, name, lambda: (setattr(connection, name, end), os.kill(os.getpid(), signal.SIGTERM)))


def _end_in_adoption(marker):
    """The first process that gives a message its row is told to end before this is committed."""
    from jobs.calling import calls

    adopt = calls.adopt

    def end_and_adopt(*args):
        if once_only(marker):
            _end_at("_commit")
        return adopt(*args)

    calls.adopt = end_and_adopt


def _quit_in_a_write(order):
    """SIGQUIT comes while the main thread acknowledges a message to RabbitMQ, and so holds py-amqp's lock."""
    from amqp.transport import TCPTransport

    write = TCPTransport.write

    def quit_and_write(self, data):
        is_ack = data[7:11] == b"\0\x3c\0\x50"
        if is_ack and threading.current_thread() is threading.main_thread() and order.exists():
            order.unlink()
            signal.raise_signal(signal.SIGQUIT)
        write(self, data)

    TCPTransport.write = quit_and_write


def _write_signals(path):
    """What the signals of this process tell, a line of JSON each."""
    for name in ("enqueued", "started", "succeeded", "retried", "failed", "cancelled", "rescued"):

        def hear(job, name=name, **kwargs):
            with open(path, "a") as file:
                file.write(json.dumps({"signal": name, "job": str(job.pk), "pid": os.getpid()}) + "\n")

        getattr(job_signals, name).connect(hear, weak=False)


def _write_celery_signals(path):
    """What Celery's own signals tell around each task, a line of JSON each."""
    for name in ("task_prerun", "task_postrun", "task_success", "task_failure", "task_retry"):

        def hear(sender, name=name, task_id=None, **kwargs):
            key = task_id or getattr(kwargs.get("request"), "id", None) or sender.request.id
            with open(path, "a") as file:
                file.write(json.dumps({"signal": name, "task": sender.name, "id": key, "pid": os.getpid()}) + "\n")

        getattr(signals, name).connect(hear, weak=False)


def _write_spans(path):
    """The spans of this process and of those that it forks, a line of JSON each."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    provider = TracerProvider()
    exporter = ConsoleSpanExporter(out=open(path, "a"), formatter=lambda span: span.to_json(indent=None) + "\n")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


if "JOBS_TEST_RELEASE" in os.environ:
    from tests.faults import release

    release.play()

if "JOBS_TEST_STRIKE" in os.environ:
    from tests.faults import strike

    strike.arm()

if "JOBS_TEST_ENDS_IN_ADOPTION" in os.environ:
    _end_in_adoption(os.environ["JOBS_TEST_ENDS_IN_ADOPTION"])

if "JOBS_TEST_QUITS_IN_A_WRITE" in os.environ:
    _quit_in_a_write(Path(os.environ["JOBS_TEST_QUITS_IN_A_WRITE"]))

if "JOBS_TEST_SIGNALS" in os.environ:
    _write_signals(os.environ["JOBS_TEST_SIGNALS"])

if "JOBS_TEST_CELERY_SIGNALS" in os.environ:
    _write_celery_signals(os.environ["JOBS_TEST_CELERY_SIGNALS"])

if "JOBS_TEST_SPANS" in os.environ:
    _write_spans(os.environ["JOBS_TEST_SPANS"])


def _charge(call, name):
    """Charge at the test's provider, as the shop does."""
    if not call.done:
        Effect.objects.create(key="calling", pid=os.getpid())
        call.answered(payments.charge(name, 100, idempotency_key=call.key))
    Effect.objects.create(key=call.answer["id"], note=name)
    return call.answer["id"]


@shared_task(atomic=False, on_ambiguous="retry", max_retries=0)
def charges_retry(name):
    with effect_of("charge", name) as call:
        return _charge(call, name)


@shared_task(atomic=False, on_ambiguous="park", max_retries=0)
def charges_park(name):
    with effect_of("charge", name) as call:
        return _charge(call, name)


@shared_task(atomic=False, on_ambiguous=lambda call: payments.find_charge(call.key), max_retries=0)
def charges_resolve(name):
    with effect_of("charge", name) as call:
        return _charge(call, name)


class Scripted:
    """What the bodies below do with their call, and what the provider says when it is asked."""

    def __init__(self):
        self.forget()

    def forget(self):
        self.block = lambda call: call.answered("the answer")
        self.resolve = lambda call: None

    def run(self, parts):
        with effect_of(*parts) as call:
            self.block(call)
        return call.answer


scripted = Scripted()


@shared_task(atomic=False)
def calls_retry(*parts):
    return scripted.run(parts)


@shared_task(
    atomic=False,
    on_ambiguous="park",
    autoretry_for=(Exception,),
    dont_autoretry_for=(KeyError,),
    max_retries=3,
    default_retry_delay=0,
)
def calls_park(*parts):
    return scripted.run(parts)


@shared_task(atomic=False, on_ambiguous=lambda call: scripted.resolve(call))
def calls_resolve(*parts):
    return scripted.run(parts)


@shared_task
def calls_in_transaction(*parts):
    return scripted.run(parts)


@shared_task(atomic=False)
def calls_a_task_that_calls(*parts):
    return calls_retry(*parts)


@shared_task(atomic=False)
def calls_again(*parts):
    try:
        return scripted.run(parts)
    except ConnectionError:
        return scripted.run(parts)


@shared_task
def touches(pk):
    Effect.objects.filter(pk=pk).update(note="touched")


@shared_task(bind=True, max_retries=3, default_retry_delay=0)
def eats_its_arguments(self, keys, fails_at):
    """Works its list off, and stumbles once."""
    done = []
    while keys:
        key = keys.pop(0)
        if key == fails_at and self.request.retries == 0:
            raise self.retry(countdown=0)
        Effect.objects.create(key=key)
        done.append(key)
    return done


@shared_task(bind=True, max_retries=3, default_retry_delay=0)
def sends_again_what_failed(self, keys):
    """As packages do that send a list of mails: each one that failed is a retry with arguments of its own."""
    for key in keys:
        if self.request.retries == 0:
            self.retry([[key]], countdown=0, throw=False)
        else:
            Effect.objects.create(key=key)


def closes(key, how):
    Effect.objects.create(key=key)
    Effect.objects.count()
    connection.close()
    if how == "goes on":
        Effect.objects.count()


closes_its_connection = shared_task(name="tests.tasks.closes_its_connection")(closes)
closes_its_own_connection = shared_task(name="tests.tasks.closes_its_own_connection", atomic=False)(closes)


@shared_task(bind=True)
def tells_its_ids(self):
    return [self.request.id, self.request.root_id]


@shared_task
def gives_back(*args, **kwargs):
    return [*args, *kwargs.values()]


@shared_task(idempotency_key="any:{key}")
def marked_by_any(key):
    return key


# Results


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


@shared_task(bind=True)
def says(self, started="", gate="", times=1):
    """Says how far it is, in the transaction of its body."""
    Effect.objects.create(key="said")
    for number in range(times):
        self.progress(number + 1, 2 * times, f"part {number + 1}")
    if gate:
        once_only(started)
        wait_for_file(gate)


@shared_task(bind=True, atomic=False)
def in_parts(self, parts, started="", gate=""):
    """Commits part by part, and waits in the middle of the third; a later run does not."""
    done = self.job.cursor or 0
    while done < parts:
        with transaction.atomic():
            Effect.objects.create(key=f"part-{done}", pid=os.getpid(), note=str(self.job.lease))
            if done == 2 and gate and once_only(started):
                wait_for_file(gate)
            done += 1
            self.job.save_cursor(done)
        self.progress(done, parts)
    return done


@shared_task
def part(key):
    Effect.objects.create(key=key)


@shared_task(bind=True)
def grows(self, times):
    """Adds to its own batch."""
    with self.job.batch.adding():
        for _ in range(times):
            part.delay("grown")


@shared_task(bind=True, atomic=False)
def grows_by_itself(self):
    with self.job.batch.adding():
        part.delay("grown")


@shared_task(bind=True)
def claims_to_be_done(self):
    self.update_state(state="SUCCESS", meta="not yet")
    raise ValueError("after all")


@shared_task(bind=True, trail=True)
def calls_a_group(self):
    return group(add.s(n, n) for n in range(2))()


@shared_task
def gets():
    return add.delay(1, 2).get(timeout=5)


@shared_task(base=celery.Task)
def stock_adds(x, y):
    return {"sum": x + y, "at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)}


@shared_task(base=celery.Task)
def stock_raises(key):
    raise KeyError(key)


@shared_task(base=celery.Task, bind=True)
def stock_progresses(self, started, gate):
    with transaction.atomic():
        Effect.objects.create(key="stock")
        self.update_state(state="PROGRESS", meta={"done": 1})
        once_only(started)
        wait_for_file(gate)


@shared_task(concurrency=2)
def two_at_once(key, seconds=0.0):
    time.sleep(seconds)
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(concurrency=1, limit_key="{customer}")
def one_of_a_customer(customer, key=""):
    Effect.objects.create(key=f"{customer}{key}", pid=os.getpid())


@shared_task(rate="5/s")
def five_a_second(key):
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(rate_limit="6/m")
def six_a_minute(key):
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(atomic=False, concurrency=3)
def three_at_once(key, seconds=0.05):
    """Not in one transaction, so that on SQLite bodies run side by side."""
    time.sleep(seconds)
