"""``manage.py jobs doctor``: is everything there that jobs need, from end to end?"""

import shlex
import time
import uuid
from argparse import Namespace
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import closing
from typing import Any, NamedTuple

from django.core import checks
from django.core.management.base import CommandError
from django.db import Error, connections
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from jobs import extensions, store
from jobs.conf import celery_app, conf, import_tasks, own_tasks
from jobs.contrib.checks.system import driver
from jobs.contrib.console.base import PROVE, JobsCommand, option, subcommand
from jobs.contrib.inspection.counts import paused, worker_command
from jobs.contrib.inspection.times import duration
from jobs.contrib.listening.news import CHANNEL
from jobs.contrib.listening.notifications import Notifications
from jobs.contrib.locks import locks
from jobs.contrib.operator import problems, statistics, status
from jobs.lifecycle import transitions
from jobs.models import ENDED, Job, State
from jobs.store import databases, identity

PATIENCE = 2.0  #: Seconds that the broker may take to answer.
#: Seconds that the probe may take; and seconds where no worker takes jobs, because one may just be starting.
PROBED, SOON = 30.0, 3.0

#: If a task has this many jobs in an hour, 95 % within this many seconds, the commit of each is most of their cost.
OFTEN, SHORT = 1000, 0.01
#: How many of these tasks are named, those with the most jobs.
MOST_NAMED = 5

#: The name of a finding that is also a problem on the dashboard: a fault, or worth a look.
ATTENTION = "attention"


class Finding(NamedTuple):
    """What the doctor found out about one part of the installation."""

    what: str
    is_well: bool
    says: str
    cure: str = ""


@subcommand(
    option("--queue", "the queue of the probe (default: that of tasks without one)"),
    option("--timeout", f"seconds for the probe (default: {PROBED:g}; {SOON:g} without a worker)", type=float),
    option("--no-probe", "enqueue no job", action="store_false", dest="is_probed"),
    wish=PROVE,
)
def doctor(out: JobsCommand, args: Namespace) -> None:
    """Try everything that a job needs, from end to end, and say in plain words what is wrong.

    Database, settings, broker, lock store, notifications and workers are tried; then a job that does nothing is
    enqueued and followed until it has ended. If it does not end, the reason is that of jobs why, and it is
    cancelled. A line begins with ok, with WRONG, or with note: worth a look, and no fault of the installation.
    The exit status is 1 if something is wrong.

    examples:
      manage.py jobs doctor
      manage.py jobs doctor --queue mail
      manage.py jobs doctor --no-probe --json
    """
    if args.timeout is not None and args.timeout <= 0:
        raise CommandError("--timeout has to be above 0 seconds.")
    found = []
    for finding in _examine(args.queue, args.timeout, args.is_probed):
        found.append(finding)
        is_problem = finding.what == ATTENTION
        well = out.style.WARNING("note ") if is_problem or finding.cure else out.style.SUCCESS("ok   ")
        says = finding.says if is_problem else f"{finding.what}: {finding.says}"
        out.say(f"{well if finding.is_well else out.style.ERROR('WRONG')} {says}")
        if finding.cure:
            out.say(f"      -> {finding.cure}")
    wrong = sum(not each.is_well for each in found)
    out.say_json({"is_well": not wrong, "findings": [each._asdict() for each in found]})
    if wrong:
        raise CommandError(f"{wrong} of {len(found)} things are not as they should be.")


def _examine(queue: str | None, timeout: float | None, is_probed: bool) -> Iterator[Finding]:
    asked = [_database(alias) for alias in conf().DATABASES]
    yield from asked
    if not all(each.is_well for each in asked):
        # All other examinations need the database.
        return
    every = checks.run_checks(tags=["jobs", checks.Tags.database], databases=conf().DATABASES)
    said = [each for each in every if not each.is_silenced()]
    faults = [each for each in said if each.level >= checks.WARNING]
    yield from (Finding(f"setting {each.id}", False, each.msg, each.hint or "") for each in faults)
    if not faults:
        yield Finding("settings", True, "manage.py check has nothing to say")
    app = celery_app()
    if app is None:
        # The check jobs.W016 has reported it.
        return
    yield _broker(app)
    yield _locks()
    yield from map(_notifications, conf().DATABASES)
    yield (workers := _workers())
    seen = status.gather(live=True)
    for each in problems.of(seen):
        if each.kind == "no_worker":
            continue
        yield Finding(ATTENTION, not problems.kinds()[each.kind].is_fault, each.text, each.command)
    import_tasks(app)
    # A job has the key of its task's limit also if a person has removed that limit.
    yield from _groupable(app, {row["name"] for row in seen.get("limits", ()) if row["kind"] == "task"})
    if is_probed:
        yield _probe(app, queue, timeout or (PROBED if workers.is_well else SOON))


def _database(alias: str) -> Finding:
    what = f"database {alias!r}"
    connection = connections[alias]
    began = time.monotonic()
    try:
        databases.ask(alias, "SELECT 1")
        took = time.monotonic() - began
        executor = MigrationExecutor(connection)
        ours = {config.label for config in extensions.app_configs()}
        targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] in ours]
        missing = executor.migration_plan(targets)
        marks = {} if missing else identity.marks(alias)
    except Error as exc:
        return Finding(what, False, f"cannot be reached: {exc}".strip(), "Look at DATABASES, and at the server.")
    if missing:
        names = ", ".join(migration.name for migration, _ in missing)
        return Finding(what, False, f"lacks migrations: {names}", "manage.py migrate")
    if not marks["adopted"]:
        says = f"is marked as another one, {marks['marked_as']!r}: workers refuse it"
        return Finding(what, False, says, "If it is a copy whose jobs should run here: manage.py jobs adopt --dry-run")
    return Finding(what, True, f"{store.of(alias).name}, answers in {took * 1000:.1f} ms, all migrations applied")


def _broker(app: Any) -> Finding:
    url, options = app.connection_for_write().as_uri(), dict(app.conf.broker_transport_options or {})
    if driver(app) == "redis":
        options |= {"socket_connect_timeout": PATIENCE, "socket_timeout": PATIENCE}
    try:
        with app.connection_for_write(connect_timeout=PATIENCE, transport_options=options) as connection:
            connection.ensure_connection(max_retries=0, timeout=PATIENCE)
    except Exception as exc:
        says = f"{url} cannot be reached: {exc!r}. Jobs run without it; remote control and other tasks do not"
        return Finding("broker", False, says, "Look at the broker, and at CELERY_BROKER_URL.")
    return Finding("broker", True, f"{url} answers")


def _locks() -> Finding:
    with closing(locks.store_of(f"jobs:doctor:{uuid.uuid4()}", 30.0)) as store:
        try:
            store.acquire()
            store.keep(0)
        except locks.AWAY as exc:
            cure = "Jobs run without their locks meanwhile; look at CACHES and at Redis."
            return Finding("locks", False, f"{store.name} does not answer: {exc}", cure)
    return Finding("locks", True, f"held by {store.name}")


def _hears(alias: str, wait: float = 1.0) -> bool:
    """Whether a notification arrives: behind a pooler that shares connections none does, and workers have to poll."""
    with databases.apart(alias) as connection:
        notifications = Notifications(connection, CHANNEL)
        store.of(alias).notify(CHANNEL, [""])
        return notifications.hears(wait, [""])


def _notifications(alias: str) -> Finding:
    what, at, poll = f"notifications of {alias!r}", store.of(alias), duration(conf().POLL_INTERVAL)
    if not at.has_notify:
        return Finding(what, True, f"{at.name} has none, workers look for new jobs")
    if _hears(alias):
        return Finding(what, True, "are heard, workers are told of new jobs")
    says = f"are not heard (a pooler that shares connections?): a job may wait {poll} until a worker looks"
    return Finding(what, True, says, "Let workers connect to the server itself, or to a pool of sessions.")


def _workers() -> Finding:
    nodes = status.nodes()
    alive = [node for node in nodes if node["takes_jobs"]]
    if not alive:
        others = [f"{n['hostname']} ({n['id'][:8]}) {'stops' if n['alive'] else 'went silent'}" for n in nodes]
        says = f"none takes jobs; {', '.join(others)}" if others else "none is alive"
        return Finding("workers", False, says, worker_command())
    consumed = sorted({queue for node in alive for queue in node["queues"]})
    return Finding("workers", True, f"{len(alive)} alive, on the queues {', '.join(consumed)}")


def _groupable(app: Any, limited: Container[str]) -> Iterator[Finding]:
    """The tasks whose jobs could share a commit, judged by their declarations and the last hour."""
    begin = statistics.floor(timezone.now(), statistics.MINUTE) - statistics.HOUR
    ended = statistics.summed(statistics.MINUTE, begin, "task", "state")
    found = []
    for (name, state), count in ended.most_common():
        task = app.tasks.get(name)
        if count < OFTEN or state != State.SUCCEEDED or (name, State.FAILED) in ended:
            continue
        if name in limited or not _may_be_grouped(name, task):
            continue
        ran = Counter[str]()
        for row in statistics.of(statistics.MINUTE, begin, task=name, state=state):
            ran.update(row.ran)
        if (within := statistics.percentile(ran, 0.95)) is not None and within <= SHORT:
            found.append(f"{name} ({count} in an hour, 95 % within {within * 1000:.0f} ms)")
    if found:
        says = f"each job has a commit of its own. Several could share one: {', '.join(found[:MOST_NAMED])}"
        cure = "If the body touches nothing but the database: @shared_task(grouped=True); docs/howto/fast.md."
        yield Finding("commits", True, says, cure)


def _may_be_grouped(name: str, task: Any) -> bool:
    """Whether the task's declaration allows ``grouped=True``, and its jobs would not run alone nevertheless."""
    # The task is grouped already, or is not run as a job, or is our own: a project does not declare those.
    if getattr(task, "grouped", True) or name in own_tasks():
        return False
    if not task.atomic or task.is_async or "lock" in task.key_templates:
        return False
    return task.expires is None


def _probe(app: Any, queue: str | None, timeout: float) -> Finding:
    task = app.tasks.get("jobs.probe")
    if task is None:
        cure = f"Call app.autodiscover_tasks() without a list of packages, or add {Job._meta.app_config.name!r} to it."
        return Finding("probe", False, "the task jobs.probe is not registered", cure)
    name = queue or app.conf.task_default_queue
    if name in paused():
        return Finding("probe", False, f"the queue {name!r} is paused", f"manage.py jobs resume {shlex.quote(name)}")
    began = time.monotonic()
    try:
        key = uuid.UUID(task.apply_async(queue=queue, expires=max(60.0, 2 * timeout)).id)
    except (TypeError, ValueError) as exc:
        return Finding("probe", False, f"no job can be enqueued: {exc}", "Look at --queue, --timeout and the routes.")
    except Error as exc:
        says = f"no job can be enqueued: {databases.describe(exc)}"
        return Finding("probe", False, says, "Look at DATABASES: does it lead to a server that takes writes?")
    job: Job | None = None
    while time.monotonic() - began < timeout and (job is None or job.state not in ENDED):
        time.sleep(0.1)
        job = databases.first(Job.objects.filter(pk=key))
    took = duration(time.monotonic() - began)
    if job is not None and job.state == State.SUCCEEDED:
        return Finding("probe", True, f"enqueued, run on the node {str(job.result)[:8]} and finished in {took}")
    # Imported late: the other subcommands do not need that extension.
    from jobs.contrib.why import explain

    reason = explain.explain(key)[1][0]
    for alias in conf().DATABASES:
        transitions.cancel(key, alias, why="manage.py jobs doctor waited for it in vain")
    return Finding("probe", False, f"{key} did not succeed within {duration(timeout)}: {reason.says}", reason.cure)
