"""``manage.py jobs verify|doctor``: whether the promise is kept, and whether all is there that keeps it."""

from __future__ import annotations

import time
import uuid
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import Error, connections
from django.db.migrations.executor import MigrationExecutor

from jobs import census, instance, lifecycle, listener, locks, project, queues, why
from jobs import verify as promise
from jobs.checks import driver
from jobs.commands.base import AS_JSON, JobsCommand, option, subcommand
from jobs.conf import conf
from jobs.models import ENDED, Job, State
from jobs.selection import find
from jobs.times import duration

#: Seconds between two looks at the probe.
LOOK = 0.1

#: Seconds that the broker may take to answer.
PATIENCE = 2.0


@subcommand(
    AS_JSON,
    option("--all", "read all jobs, however long it takes", action="store_true", dest="everything"),
    option(
        "--no-watch",
        action="store_false",
        dest="patient",
        help="let the times in the rows decide at once; right after an outage of the database they are wrong",
    ),
)
def verify(out: JobsCommand, args: Namespace) -> None:
    """Hold the promise against the data: what breaks it, and what is about to be put right.

    One line for each rule. A violation breaks the promise. A row that recovers waits for a worker, for a person
    (an external call), behind others, or for no longer than recovery may take. Rows that should have recovered
    by now are watched before they are called violations; that takes up to a minute, and only if there are any.
    Nothing is changed.

    The exit status is 0 without violations, 1 with violations, 2 if a database cannot be asked. Of each live
    state 10,000 jobs are read, and of history 100,000 of those that were made in the last day.

    examples:
      manage.py jobs verify
      manage.py jobs verify --verbosity 2
      manage.py jobs verify --all --json
    """
    try:
        report = promise.verify(
            everything=args.everything, patient=args.patient, tell=lambda line: out.stderr.write(line, out.style.NOTICE)
        )
    except (promise.Unverifiable, ImproperlyConfigured) as exc:
        raise CommandError(str(exc), returncode=2) from exc
    counts = {"violations": report.violations, "recovering": report.recovering, "workers": report.workers}
    if args.as_json:
        rules = [asdict(finding) for finding in report.findings]
        out.say_json({**counts, "databases": list(conf().DATABASES), "everything": args.everything, "rules": rules})
    else:
        width = max(len(finding.rule) for finding in report.findings)
        for finding in report.findings:
            parts = [f"{word} {count}" for word in ("violations", "recovering") if (count := getattr(finding, word))]
            style = out.style.ERROR if finding.violations else out.style.WARNING if parts else out.style.SUCCESS
            verdict = style((", ".join(parts) or "ok").ljust(13))
            out.say(f"{finding.rule.ljust(width)}  {verdict}  {finding.says}")
            for example in finding.examples if args.verbosity > 1 else ():
                out.say(f"{' ' * width}    {example}")
        workers = f"{report.workers} worker{'' if report.workers == 1 else 's'}"
        out.say(
            f"{len(report.findings)} rules, {report.violations} violations, {report.recovering} recovering, {workers}"
            + ("" if report.workers else ": nothing recovers without one")
        )
    if report.violations:
        raise CommandError(f"{report.violations} violations of the promise.")


class Finding(NamedTuple):
    """What the doctor says of one thing."""

    what: str
    is_well: bool
    says: str
    cure: str = ""


@subcommand(
    option("--queue", "the queue of the probe (default: that of tasks without one)"),
    option("--timeout", "seconds for the probe (default: %(default)g)", type=float, default=30.0),
    option("--no-probe", "enqueue no job", action="store_false", dest="is_probed"),
    AS_JSON,
)
def doctor(out: JobsCommand, args: Namespace) -> None:
    """Try everything that a job needs, from end to end, and say in plain words what is wrong.

    Database, settings, broker, lock store, rings and workers are tried; then a job that does nothing is
    enqueued and followed until it has ended. If it does not end, the reason is that of jobs why, and it is
    cancelled. The exit status is 1 if something is wrong.

    examples:
      manage.py jobs doctor
      manage.py jobs doctor --queue mail
      manage.py jobs doctor --no-probe --json
    """
    if args.timeout <= 0:
        raise CommandError("--timeout has to be above 0 seconds.")
    found = []
    for finding in _examine(args.queue, args.timeout, args.is_probed):
        found.append(finding)
        if not args.as_json:
            mark = out.style.SUCCESS("ok   ") if finding.is_well else out.style.ERROR("WRONG")
            out.say(f"{mark} {finding.what}: {finding.says}")
            if finding.cure:
                out.say(f"      -> {finding.cure}")
    wrong = sum(not each.is_well for each in found)
    if args.as_json:
        out.say_json({"is_well": not wrong, "findings": [each._asdict() for each in found]})
    if wrong:
        raise CommandError(f"{wrong} of {len(found)} things are not as they should be.")


def _examine(queue: str | None, timeout: float, is_probed: bool) -> Iterator[Finding]:
    databases = [_database(alias) for alias in conf().DATABASES]
    yield from databases
    if not all(each.is_well for each in databases):
        # Everything else asks it.
        return
    faults = [each for each in checks.run_checks(tags=["jobs"]) if each.level >= checks.WARNING]
    yield from (Finding(f"setting {each.id}", False, each.msg, each.hint or "") for each in faults)
    if not faults:
        yield Finding("settings", True, "manage.py check has nothing to say")
    app = project.celery_app()
    if app is None:
        cure = "Import it in the __init__.py of the package that holds the settings (from proj.celery import app)."
        yield Finding("app", False, "the project's Celery app is not loaded", cure)
        return
    yield _broker(app)
    yield _locks()
    yield from map(_ring, conf().DATABASES)
    yield _workers()
    for kind, text in census.remarks(census.gather(live=True)):
        yield Finding("attention", kind in census.NO_FAULT, text)
    if is_probed:
        app.loader.import_default_modules()
        yield _probe(app, queue, timeout)


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


def _locks() -> Finding:
    store = locks.store_of(f"jobs:doctor:{uuid.uuid4()}", 30.0)
    name = "Redis" if isinstance(store, locks.RedisStore) else "the database"
    try:
        store.acquire()
        store.keep(0)
    except locks.AWAY as exc:
        cure = "Jobs run without their locks meanwhile; look at CACHES and at Redis."
        return Finding("locks", False, f"{name} does not answer: {exc}", cure)
    finally:
        store.close()
    return Finding("locks", True, f"held by {name}")


def _ring(alias: str) -> Finding:
    what, vendor, poll = f"rings of {alias!r}", connections[alias].vendor, duration(conf().POLL_INTERVAL)
    if vendor != "postgresql":
        return Finding(what, True, f"{vendor} has none, workers look for new jobs")
    if listener.hears(alias):
        return Finding(what, True, "are heard, workers are told of new jobs")
    says = f"are not heard (a pooler that shares connections?): a job may wait {poll} until a worker looks"
    return Finding(what, True, says, "Let workers connect to the server itself, or to a pool of sessions.")


def _workers() -> Finding:
    nodes, _ = census.nodes(census.running_by_node())
    alive = [node for node in nodes if node["takes_jobs"]]
    if not alive:
        others = [f"{n['hostname']} ({n['id'][:8]}) {'stops' if n['alive'] else 'went silent'}" for n in nodes]
        says = f"none takes jobs; {', '.join(others)}" if others else "none is alive"
        return Finding("workers", False, says, "celery -A proj worker")
    consumed = sorted({queue for node in alive for queue in node["queues"]})
    return Finding("workers", True, f"{len(alive)} alive, on the queues {', '.join(consumed)}")


def _probe(app: Any, queue: str | None, timeout: float) -> Finding:
    task = app.tasks.get("jobs.probe")
    if task is None:
        cure = "Call app.autodiscover_tasks() without a list of packages, or add 'jobs' to it."
        return Finding("probe", False, "the task jobs.probe is not registered", cure)
    name = queue or app.conf.task_default_queue
    if name in queues.paused():
        return Finding("probe", False, f"the queue {name!r} is paused", f"manage.py jobs resume {name}")
    began = time.monotonic()
    key = uuid.UUID(task.apply_async(queue=queue, expires=max(60.0, 2 * timeout)).id)
    job: Job | None = None
    while time.monotonic() - began < timeout and (job is None or job.state not in ENDED):
        time.sleep(LOOK)
        job = find(key)
    took = duration(time.monotonic() - began)
    if job is not None and job.state == State.SUCCEEDED:
        return Finding("probe", True, f"enqueued, run on the node {str(job.result)[:8]} and settled in {took}")
    reason = why.explain(key)[1][0]
    for alias in conf().DATABASES:
        lifecycle.cancel(key, alias, why="manage.py jobs doctor waited for it in vain")
    return Finding("probe", False, f"{key} did not succeed within {took}: {reason.says}", reason.cure)
