"""Bodies that several files of tests use. Each leaves a ledger row; those that misbehave are in ``misbehaving``.

A body that one file uses stands there, beside its test: a worker that a test starts imports the file of the test.
"""

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import celery
from celery import shared_task
from django.db import connection

from jobs import Snooze, Task
from tests.helpers import hooks, misbehaving  # noqa: F401
from tests.helpers.gates import once_only, wait_for_file
from tests.models import Effect, Order


@shared_task
def effect(key, note=""):
    Effect.objects.create(key=key, pid=os.getpid(), note=note)
    return key


class OwnCall(Task):
    """As many projects have it."""

    abstract = True

    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)


@shared_task(base=OwnCall)
def own_call(key):
    Effect.objects.create(key=key, pid=os.getpid(), note=str(connection.in_atomic_block))


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


@shared_task(idempotency_key="welcome:{user_id}")
def welcomes(user_id, how=""):
    Effect.objects.create(key=f"welcome:{user_id}", pid=os.getpid())
    if how == "fails":
        raise ValueError(how)
    return object() if how == "returns an object" else f"welcome {user_id}"


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


@shared_task(autoretry_for=(Exception,))
def snoozes(key, seconds):
    Effect.objects.create(key=key, pid=os.getpid())
    raise Snooze(seconds, "not yet")


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
    if kind == "interrupt":
        raise KeyboardInterrupt
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


@shared_task(time_limit=2)
def never_ends(key):
    Effect.objects.create(key=key)
    time.sleep(60)


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


@shared_task(base=Task)
def based(key):
    Effect.objects.create(key=key)


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


@shared_task
def passes(value):
    return value


@shared_task(atomic=False)
def leaves_autocommit_off(key):
    connection.set_autocommit(False)
    Effect.objects.create(key=key)


@shared_task
def takes_turns(key):
    """All bodies want the same row."""
    Order.objects.select_for_update().order_by("pk").first()
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(autoretry_for=(TimeoutError,), max_retries=2, default_retry_delay=0, retry_backoff=False)
def gives_up(key, cured=None):
    Effect.objects.create(key=key, pid=os.getpid())
    if not (cured and Path(cured).exists()):
        raise TimeoutError("not yet")


@shared_task
def touches(pk):
    Effect.objects.filter(pk=pk).update(note="touched")


@shared_task
def gives_back(*args, **kwargs):
    return [*args, *kwargs.values()]


# Results


@shared_task
def part(key):
    Effect.objects.create(key=key)


# Those of an extension go with it.
for _path in sorted(Path(__file__).parent.glob("contrib/*/tasks.py")):
    importlib.import_module(f"tests.contrib.{_path.parent.name}.tasks")

_file = Path(os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0])
_path = Path(__file__).parent.parent / _file
if _path.is_file() and "@shared_task" in _path.read_text():
    # In the processes that a test starts.
    importlib.import_module(".".join(_file.with_suffix("").parts))
