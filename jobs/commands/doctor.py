"""``manage.py jobs doctor``."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from django.core import checks
from django.core.management.base import CommandError
from django.db import Error, connections
from django.db.migrations.executor import MigrationExecutor

from jobs import census, instance, lifecycle, listener, lockstores, project, queues, why
from jobs.checks.celery import driver
from jobs.commands.base import AS_JSON, Subcommand, option
from jobs.conf import conf
from jobs.models import ENDED, Job, State
from jobs.selection import find
from jobs.times import duration

#: Seconds between two looks at the probe.
LOOK = 0.1

#: Seconds that the broker may take to answer.
PATIENCE = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    is_well: bool
    says: str
    cure: str = ""


class Doctor(Subcommand):
    name = "doctor"
    summary = "try everything that a job needs, from end to end, and say in plain words what is wrong"
    more = (
        "Database, settings, broker, lock store, rings and workers are tried; then a job that does nothing is\n"
        "enqueued and followed until it has ended. If it does not end, the reason is that of jobs why, and it is\n"
        "cancelled. The exit status is 1 if something is wrong."
    )
    options = (
        option("--queue", help="the queue of the probe (default: that of tasks without one)"),
        option("--timeout", type=float, default=30.0, help="seconds for the probe (default: %(default)g)"),
        option("--no-probe", action="store_false", dest="is_probed", help="enqueue no job"),
        AS_JSON,
    )
    examples = ("doctor", "doctor --queue mail", "doctor --no-probe --json")

    def run(self, *, queue: str | None, timeout: float, is_probed: bool, as_json: bool, **options: Any) -> None:
        if timeout <= 0:
            raise CommandError("--timeout has to be above 0 seconds.")
        found = []
        for finding in self._examine(queue, timeout, is_probed):
            found.append(finding)
            if not as_json:
                self._write(finding)
        wrong = sum(not each.is_well for each in found)
        if as_json:
            self.say_json({"is_well": not wrong, "findings": [asdict(each) for each in found]})
        if wrong:
            raise CommandError(f"{wrong} of {len(found)} things are not as they should be.")

    def _write(self, finding: Finding) -> None:
        mark = self.style.SUCCESS("ok   ") if finding.is_well else self.style.ERROR("WRONG")
        self.say(f"{mark} {finding.what}: {finding.says}")
        if finding.cure:
            self.say(f"      -> {finding.cure}")

    def _examine(self, queue: str | None, timeout: float, is_probed: bool) -> Iterator[Finding]:
        databases = [_database(alias) for alias in conf().DATABASES]
        yield from databases
        if not all(each.is_well for each in databases):
            # Everything else asks it.
            return
        yield from _settings()
        app = project.celery_app()
        if app is None:
            cure = "Import it in the __init__.py of the package that holds the settings (from proj.celery import app)."
            yield Finding("app", False, "the project's Celery app is not loaded", cure)
            return
        yield _broker(app)
        yield _locks()
        for alias in conf().DATABASES:
            yield _ring(alias)
        yield _workers()
        for kind, text in census.remarks(census.gather(live=True)):
            yield Finding("attention", kind in census.NO_FAULT, text)
        if is_probed:
            app.loader.import_default_modules()
            yield from _probe(app, queue, timeout)


def _database(alias: str) -> Finding:
    what = f"database {alias!r}"
    connection = connections[alias]
    began = time.monotonic()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        took = time.monotonic() - began
        executor = MigrationExecutor(connection)
        targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == Job._meta.app_label]
        missing = executor.migration_plan(targets)
        marks = {} if missing else instance.marks(alias)
    except Error as exc:
        return Finding(what, False, f"cannot be reached: {exc}".strip(), "Look at DATABASES, and at the server.")
    if missing:
        names = ", ".join(migration.name for migration, _ in missing)
        return Finding(what, False, f"lacks migrations: {names}", "manage.py migrate")
    if marks["marked_as"] not in (None, marks["is"]):
        says = f"is marked as another one, {marks['marked_as']!r}: workers refuse it"
        return Finding(what, False, says, "If it is a copy whose jobs should run here: manage.py jobs adopt --dry-run")
    return Finding(what, True, f"{connection.vendor}, answers in {took * 1000:.1f} ms, all migrations applied")


def _settings() -> Iterator[Finding]:
    found = [each for each in checks.run_checks(tags=["jobs"]) if each.level >= checks.WARNING]
    for each in found:
        yield Finding(f"setting {each.id}", False, each.msg, each.hint or "")
    if not found:
        yield Finding("settings", True, "manage.py check has nothing to say")


def _broker(app: Any) -> Finding:
    url, options = app.connection_for_write().as_uri(), dict(app.conf.broker_transport_options or {})
    if driver(app) == "redis":
        options |= {"socket_connect_timeout": PATIENCE, "socket_timeout": PATIENCE}
    try:
        with app.connection_for_write(connect_timeout=PATIENCE, transport_options=options) as connection:
            connection.ensure_connection(max_retries=0, timeout=PATIENCE)
    except Exception as exc:
        says = f"{url} cannot be reached: {exc!r}. Jobs run without it; remote control and other tasks do not"
        return Finding("broker", False, says, "Look at CELERY_BROKER_URL, and at it.")
    return Finding("broker", True, f"{url} answers")


def _ring(alias: str) -> Finding:
    what, vendor, poll = f"rings of {alias!r}", connections[alias].vendor, duration(conf().POLL_INTERVAL)
    if vendor != "postgresql":
        return Finding(what, True, f"{vendor} has none, workers look for new jobs")
    if listener.hears(alias):
        return Finding(what, True, "are heard, workers are told of new jobs")
    says = f"are not heard (a pooler that shares connections?): a job may wait {poll} until a worker looks"
    return Finding(what, True, says, "Let workers connect to the server itself, or to a pool of sessions.")


def _locks() -> Finding:
    holder = lockstores.Holder(f"jobs:doctor:{uuid.uuid4()}", 30.0, uuid.uuid4(), None, 0)
    store = lockstores.store_of(holder)
    name = "Redis" if isinstance(store, lockstores.RedisStore) else "the database"
    try:
        store.acquire()
        store.release()
    except lockstores.Away as exc:
        cure = "Jobs run without their locks meanwhile; look at CACHES and at Redis."
        return Finding("locks", False, f"{name} does not answer: {exc}", cure)
    finally:
        store.close()
    return Finding("locks", True, f"held by {name}")


def _workers() -> Finding:
    nodes, _ = census.nodes(census.running_by_node())
    alive = [node for node in nodes if node["takes_jobs"]]
    if not alive:
        others = ", ".join(
            f"{node['hostname']} ({node['id'][:8]}) {'stops' if node['alive'] else 'went silent'}" for node in nodes
        )
        says = f"none takes jobs; {others}" if others else "none is alive"
        return Finding("workers", False, says, "celery -A proj worker")
    consumed = sorted({queue for node in alive for queue in node["queues"]})
    return Finding("workers", True, f"{len(alive)} alive, on the queues {', '.join(consumed)}")


def _probe(app: Any, queue: str | None, timeout: float) -> Iterator[Finding]:
    task = app.tasks.get("jobs.probe")
    if task is None:
        cure = "Call app.autodiscover_tasks() without a list of packages, or add 'jobs' to it."
        yield Finding("probe", False, "the task jobs.probe is not registered", cure)
        return
    name = queue or app.conf.task_default_queue
    if name in queues.paused():
        yield Finding("probe", False, f"the queue {name!r} is paused", f"manage.py jobs resume {name}")
        return
    began = time.monotonic()
    result = task.apply_async(queue=queue, expires=max(60.0, 2 * timeout))
    job = _follow(uuid.UUID(result.id), lambda: time.monotonic() - began < timeout)
    took = duration(time.monotonic() - began)
    if job is not None and job.state == State.SUCCEEDED:
        yield Finding("probe", True, f"enqueued, run on the node {str(job.result)[:8]} and settled in {took}")
        return
    reason = why.explain(uuid.UUID(result.id))[1][0]
    yield Finding("probe", False, f"{result.id} did not succeed within {took}: {reason.says}", reason.cure)
    for alias in conf().DATABASES:
        lifecycle.cancel(uuid.UUID(result.id), alias, why="manage.py jobs doctor waited for it in vain")


def _follow(key: uuid.UUID, goes_on: Callable[[], bool]) -> Job | None:
    while goes_on():
        job: Job | None = find(key)
        if job is not None and job.state in ENDED:
            return job
        time.sleep(LOOK)
    return None
