"""What a test has its workers do besides, by their environment (``JOBS_TEST_...``)."""

import atexit
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from celery import signals

from jobs.calling import request
from jobs.worker import runner
from tests.helpers import looks  # noqa: F401
from tests.helpers.gates import once_only
from tests.helpers.hearing import listen
from tests.helpers.misbehaving import end_at


@signals.celeryd_after_setup.connect
def forget(sender, instance, **kwargs):
    """A worker of the release before, which does not know this task."""
    instance.app.tasks.pop(os.environ.get("JOBS_TEST_FORGET"), None)


def _end_in_adoption(marker):
    """The first process that gives a message its row is told to end before this is committed."""
    from jobs.contrib.messages import receiving

    insert = receiving.insert

    def end_and_receive(*args):
        if once_only(marker):
            end_at("_commit")
        return insert(*args)

    receiving.insert = end_and_receive


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
    from jobs import signals as job_signals

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


if "JOBS_TEST_IMPORTS" in os.environ:
    imported = set()
    os.register_at_fork(after_in_child=lambda: imported.update(sys.modules))

    def note_imports(job, action):
        """What the process of a job has imported for itself since its fork."""
        if action == "succeeded":
            Path(os.environ["JOBS_TEST_IMPORTS"]).write_text(" ".join(sys.modules.keys() - imported))

    listen(note_imports)


if "JOBS_TEST_HANGS_AT_EXIT" in os.environ:
    # Before the supervisor is there, so it comes after the supervisor's end, as billiard's does.
    atexit.register(time.sleep, 60)

if "JOBS_TEST_CONSUMER_TIMEOUT" in os.environ:
    request.CONSUMER_TIMEOUT = float(os.environ["JOBS_TEST_CONSUMER_TIMEOUT"])

if "JOBS_TEST_CLAIMS_MANY" in os.environ:
    # However slow the machine is.
    runner.BATCH_TIME = 60.0

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
