"""Real worker processes, and what the tests wait for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from celery import current_app
from django.conf import settings
from django.db import connection

from jobs.conf import conf
from jobs.execution import pipeline
from jobs.lifecycle import transitions
from jobs.lifecycle.claims import claimer
from jobs.lifecycle.run import Run
from jobs.lifecycle.worker_state import BODY, is_alive, worker_state
from jobs.models import ENDED, Job, Node
from jobs.store import databases, heartbeats
from jobs.worker.runner import Runner
from tests.helpers import fork_server
from tests.helpers.servers import wait_for
from tests.models import Effect

ROOT = fork_server.ROOT


def database_url() -> str:
    database = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{database['NAME']}"
    return f"{connection.vendor}://{database['USER']}@{database['HOST']}:{database['PORT']}/{database['NAME']}"


def environment(**more: str) -> dict[str, str]:
    """What a process of the project under test needs to see the test's database and broker."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"],
        "DATABASE_URL": database_url(),
        "CELERY_BROKER_URL": settings.CELERY_BROKER_URL,
        **fork_server.START,
        "JOBS_TEST_BROKER_OPTIONS": json.dumps(getattr(settings, "CELERY_BROKER_TRANSPORT_OPTIONS", None)),
        "JOBS_TEST_SETTINGS": json.dumps({k: v for k, v in settings.JOBS.items() if not isinstance(v, tuple)}),
        **more,
    }


class Worker:
    """``celery -A shop worker`` in a process group of its own."""

    #: The project's app.
    app = "shop"

    def __init__(
        self,
        *options: str,
        concurrency: int = 2,
        wait: bool = True,
        sync: str = "",
        by: Sequence[str] = (),
        **env: str,
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="jobs-worker-"))
        if sync:
            env |= {"JOBS_SYNC_POINTS": sync, "JOBS_SYNC_DIR": str(self.directory)}
        self.log = self.directory / "log"
        known = set(Node.objects.values_list("pk", flat=True)) if wait else set()
        command = ["celery", "-A", self.app, "worker", "-l", "INFO", "-c", str(concurrency)]
        command += ["-n", f"{self.directory.name}@%h", "--without-mingle", "--without-gossip", *options]
        self.process = fork_server.start(command, self.log, environment(**env), by)
        self.node: Node | None = None
        if wait:
            self.wait_ready(known)

    def wait_ready(self, known: set) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, f"the worker ended: {self.text()[-4000:]}"
            return " ready." in self.text()

        wait_for(ready, 40, f"worker ready: {self.text()[-2000:]}")
        self.node = wait_for(
            lambda: Node.objects.filter(pid=self.process.pid, dead_at=None).exclude(pk__in=known).first(), 10, "node"
        )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def pids(self) -> list[int]:
        """All processes of the worker's group."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(ProcessLookupError):
                    if os.getpgid(int(entry)) == self.process.pid and is_alive(int(entry)):
                        found.append(int(entry))
        return found

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, timeout: float = 30) -> int:
        """SIGTERM to the main process: a warm shutdown."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.signal(signal.SIGCONT)
        self.kill()


def wait_ended(*ids: object, timeout: float = 30.0) -> list[Job]:
    keys = [str(key) for key in ids]

    def ended() -> bool:
        return Job.objects.filter(pk__in=keys, state__in=ENDED).count() == len(keys)

    try:
        wait_for(ended, timeout, "jobs ended")
    except AssertionError as exc:
        raise AssertionError(
            f"{exc}: {list(Job.objects.filter(pk__in=keys).values_list('state', 'error', 'lease'))}"
        ) from exc
    jobs = {str(job.pk): job for job in Job.objects.filter(pk__in=keys)}
    return [jobs[key] for key in keys]


def wait_state(key: object, state: str, timeout: float = 20.0) -> Job:
    return wait_for(lambda: Job.objects.filter(pk=str(key), state=state).first(), timeout, f"job is {state}")


def in_body(key: object, started: Path) -> int:
    """Wait until the body runs, and has left its mark; return the pid of its process."""
    pid = int(wait_for(lambda: started.exists() and started.read_text(), 20, "the body runs"))
    wait_state(key, "running")
    return pid


def wait_heartbeats(node: object) -> None:
    """Wait until the node has beaten for twice the time after which silence would be death."""
    with databases.side() as side:

        def count() -> int:
            return heartbeats.read(side)[node]  # type: ignore[index]

        enough = count() + round(2 * conf().DEAD_AFTER / conf().HEARTBEAT)
        wait_for(lambda: count() >= enough, 6 * conf().DEAD_AFTER, "the node beats on")


def wait_reached(directory: Path, point: str, timeout: float = 20.0) -> int:
    """Wait until a process arrived at the sync point; return its pid."""
    path = directory / f"{point}.reached"
    return int(wait_for(lambda: path.exists() and path.read_text(), timeout, f"{point} reached"))


def effects() -> Counter:
    return Counter(Effect.objects.values_list("key", flat=True))


def claim(key, node=None):
    """Claim just this job, as the process of a worker does; None if it cannot be claimed."""
    alias = next(alias for alias in conf().DATABASES if Job.objects.using(alias).filter(pk=key).exists())
    wanted = Job.objects.using(alias).get(pk=key)
    rows = Job.objects.using(alias).filter(pk=key)
    # Before all others for a moment.
    if not rows.filter(state="ready").update(rank=-(2**15)):
        return None
    jobs = claimer(None).claim(alias, wanted.queue, node or worker_state.node, 1)
    rows.update(rank=wanted.rank)
    if jobs and jobs[0].pk != wanted.pk:
        transitions.hand_back_claim(alias, node or worker_state.node, jobs[0].token)
        return None
    for job in jobs:
        job.rank = wanted.rank
    return jobs[0] if jobs else None


def deliver(result):
    """Claim a job and run it in this process, as a worker does; return (state, value) as Celery sees it.

    ``("UNCLAIMED", None)`` if it cannot be claimed.
    """
    job = claim(result.id)
    return ("UNCLAIMED", None) if job is None else run(job)


def die_with(worker_state, job, phase=BODY, batch=0):
    """A process of this worker dies with the job on the worker state; return its slot."""
    if (child := os.fork()) == 0:
        slot = worker_state.take()
        slot.name(job.pk, job.lease, job.token, batch, None, None, b"{}")
        slot.enter(phase)
        os._exit(0)
    os.waitpid(child, 0)
    return next(slot for slot in worker_state.occupied() if slot.job == job.pk)


def run(job):
    """Run a claimed job in this process; return (state, value) as Celery sees it."""
    runner = Runner(current_app._get_current_object(), "here")
    try:
        ran = Run(runner.app.tasks[job.task], job, str(job._state.db), runner.slot)
        runner._name(ran, 0)
        pipeline.run(ran)
    finally:
        runner.slot.free()
    return ran.state, ran.result if ran.told is None else ran.told


def run_ready(limit=100):
    """Run what is ready, in this process, until nothing is."""
    for _ in range(limit):
        transitions.make_due("default", 100)
        if (job := Job.objects.filter(state="ready").order_by("pk").first()) is None:
            return
        run(claim(job.pk))
    raise AssertionError("it goes on and on")
