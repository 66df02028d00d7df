"""What needs attention, worst first: the same answer for the dashboard, ``manage.py jobs status`` and ``doctor``."""

import datetime
import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from jobs import extensions
from jobs.conf import conf
from jobs.contrib.inspection.counts import at_least, in_line, late_after, worker_command
from jobs.contrib.inspection.times import duration
from jobs.contrib.inspection.view import View
from jobs.contrib.operations.actions import OPERATIONS
from jobs.contrib.operator import statistics, status, unpruned
from jobs.contrib.operator.problem import ERROR, INFO, SEVERITIES, WARNING, Kind, Link, Problem, ago, by_whom
from jobs.contrib.operator.statistics import HOUR, MINUTE, MOST, Row
from jobs.errors import EffectParked
from jobs.models import Job, Node, State
from jobs.store import databases

LONG = 1800.0  #: Seconds after which a running body is a problem.

NAMED = 20  #: The most problems of one kind that are named.

EVERY_TIME = 5  #: If this many first attempts failed, and none succeeded, the task fails every time.

#: A body hangs if it runs this many times as long as 95 % of its task's runs; how many of these must have ended; and
#: after how many seconds it is a problem at the earliest.
FAR, KNOWN, HANGS = 20, 20, 60.0

_THEM, _WORKERS = _("Show them"), _("Show the workers")


def _jobs(**query: Any) -> Link:
    return Link(_THEM, "job_changelist", query=query)


def _ready(queue: str) -> Link:
    return _jobs(state__exact="ready", queue=queue)


def _workers(label: Any, is_empty: int) -> Link:
    return Link(label, "node_changelist", query={"dead_at__isempty": is_empty})


def _failed(task: str) -> dict[str, str]:
    return {"state__exact": "failed", "task": task, "ended": "1h"}


def _retry(task: str) -> Link:
    warns = _("All jobs of this task that failed in the last hour run again.")
    fields = {"operation": "retry", "scope": "all"}
    return Link(_("Retry these"), "job_operate", (), _failed(task), "retry_job", fields, warns)


def _kill(job: Any) -> Link:
    kill = OPERATIONS["kill"]
    return Link(kill.label, "job_operate_one", (job,), {}, kill.permission, {"operation": "kill"}, kill.warns)


def _resume(queue: str) -> Link:
    return Link(_("Resume"), "queue_switch", (), {}, "pause_queue", {"verb": "resume", "queue": queue})


#: The kinds, in the order in which they are listed.
KINDS: dict[str, Kind] = {
    "copied": Kind(
        ERROR,
        ngettext_lazy("%(number)s database is a copy", "%(number)s databases are copies", "number"),
        lambda alias: _jobs(state__exact="ready"),
    ),
    "no_worker": Kind(ERROR, _("no worker is alive"), lambda nothing: Link(_WORKERS, "node_changelist")),
    "starving": Kind(
        ERROR, ngettext_lazy("no worker for %(number)s queue", "no worker for %(number)s queues", "number"), _ready
    ),
    "standing": Kind(
        ERROR,
        ngettext_lazy("%(number)s queue stands still", "%(number)s queues stand still", "number"),
        lambda queue: _workers(_WORKERS, 1),
    ),
    "overdue": Kind(
        ERROR,
        ngettext_lazy("%(number)s job is overdue", "%(number)s jobs are overdue", "number"),
        lambda nothing: _jobs(state__exact="scheduled"),
    ),
    "unknown_task": Kind(
        ERROR,
        ngettext_lazy("%(number)s job of an unknown task", "%(number)s jobs of unknown tasks", "number"),
        lambda task: _jobs(state__exact="scheduled", task=task),
    ),
    "failing": Kind(
        ERROR,
        ngettext_lazy("%(number)s task fails every time", "%(number)s tasks fail every time", "number"),
        lambda task: _jobs(**_failed(task)),
        _retry,
        is_fault=False,
    ),
    "failed": Kind(
        WARNING,
        ngettext_lazy("%(number)s failed this hour", "%(number)s failed this hour", "number"),
        lambda task: _jobs(**_failed(task)),
        _retry,
        is_fault=False,
    ),
    "dead": Kind(
        WARNING,
        ngettext_lazy("%(number)s worker died", "%(number)s workers died", "number"),
        lambda nothing: _workers(_THEM, 0),
        lambda keys: Link(_("Seen"), "node_seen", permission="control_node", fields={"nodes": ",".join(keys)}),
        is_fault=False,
    ),
    "stuck": Kind(
        WARNING,
        ngettext_lazy("%(number)s job seems stuck", "%(number)s jobs seem stuck", "number"),
        lambda job: Link(_("Show the job"), "job_change", (job,)),
        _kill,
        is_fault=False,
    ),
    "held": Kind(
        ERROR,
        ngettext_lazy("%(number)s worker is held by stuck jobs", "%(number)s workers are held by stuck jobs", "number"),
        lambda node: Link(_("Show the worker"), "node_change", (node,)),
        is_fault=False,
    ),
    "growing": Kind(
        WARNING,
        ngettext_lazy(
            "%(number)s queue grows faster than it drains", "%(number)s queues grow faster than they drain", "number"
        ),
        _ready,
        is_fault=False,
    ),
    "unpruned": Kind(WARNING, ngettext_lazy("prune is behind", "prune is behind in %(number)s databases", "number")),
    "paused": Kind(
        WARNING,
        ngettext_lazy("%(number)s queue is paused", "%(number)s queues are paused", "number"),
        _ready,
        _resume,
        is_fault=False,
    ),
    "busy": Kind(
        INFO,
        ngettext_lazy("%(number)s queue is behind", "%(number)s queues are behind", "number"),
        _ready,
        is_fault=False,
    ),
}


def kinds() -> dict[str, Kind]:
    """All kinds, also those of extensions, in the order in which they are listed."""
    found: dict[str, Kind] = {}
    for part in status.parts("KINDS"):
        found |= part
    order = [*KINDS]
    for name, kind in found.items():
        order.insert(order.index(kind.before) if kind.before else len(order), name)
    found |= KINDS
    return {name: found[name] for name in order}


def of(found: dict[str, Any], running: Iterable[Any] | None = None) -> list[Problem]:
    """The present problems, the worst first.

    Parameters:
        found: the result of :func:`status.gather`; with ``rates``, jobs a minute into each queue and out of it, if
            they are known, and with ``rest``, ended jobs that are not counted yet, if they were read.
            running: the oldest running jobs (:func:`status.running_now`).
    """
    rest = found.get("rest")
    minutes = statistics.of_failed(statistics.uncounted() if rest is None else rest, NAMED)
    every = [
        *_copies(found["databases"]),
        *_no_worker(found),
        *_queues(found, found.get("rates", {})),
        *_overdue(found["due"]),
        *_unknown(found["unknown_tasks"]),
        *_failing(minutes, found["nodes"]),
        *_died(found["died"]),
        *_stuck(status.running_now() if running is None else [*running], found["nodes"]),
        *_unpruned(found),
        *(each for problems in status.parts("problems") for each in problems(found)),
    ]
    known = kinds()
    order = [*known]
    every = [replace(each, severity=each.severity or known[each.kind].severity) for each in every]
    return sorted(every, key=lambda each: (SEVERITIES.index(each.severity), order.index(each.kind)))


def sentence(problems: Iterable[Problem], more: Iterable[str] = ()) -> str:
    """One sentence about all of them: how many problems there are, and which. ``more`` is added at the end."""
    total: Counter[str] = Counter()
    number = 0
    for each in problems:
        total[each.kind] += each.number
        number += each.severity != INFO
    says = gettext("All is well")
    if number:
        says = ngettext("%(number)s problem", "%(number)s problems", number) % {"number": number}
    known = kinds()
    parts = [*(known[kind].many % {"number": number} for kind, number in total.items()), *more]
    return f"{says}: {' · '.join(parts)}" if parts else f"{says}."


def _copies(marks: dict[str, Any]) -> Iterator[Problem]:
    for alias, mark in marks.items():
        if not mark["adopted"]:
            says = gettext(
                "the database %(database)r is marked as another one, %(mark)r, and it is %(is)r: workers refuse it "
                "until `manage.py jobs adopt`"
            )
            means = gettext("Its jobs may run at the original as well: here they wait until the database is adopted.")
            yield Problem("copied", says % {**mark, "database": alias, "mark": mark["marked_as"]}, means)


def _is_any_alive(found: dict[str, Any]) -> bool:
    return any(node["alive"] for node in found["nodes"])


def _no_worker(found: dict[str, Any]) -> Iterator[Problem]:
    if not _is_any_alive(found):
        waits = [queue["oldest_ready_seconds"] or 0.0 for queue in found["queues"].values() if not queue["paused"]]
        says, longest = gettext("no worker is alive"), max(waits, default=0.0)
        if longest >= late_after():
            says = gettext("no worker is alive, and the oldest ready job has waited %s") % duration(longest)
        means = gettext("Nothing that is called or comes due runs until one is started.")
        yield Problem("no_worker", says, means, command=worker_command())


def _is_free(node: dict[str, Any]) -> bool:
    """Whether a worker takes jobs, and has an idle process."""
    return node["takes_jobs"] and (node["concurrency"] is None or node["running"] < node["concurrency"])


def _queues(found: dict[str, Any], rates: Mapping[str, tuple[float, float]]) -> Iterator[Problem]:
    quiet = [node for node in found["nodes"] if node["takes_jobs"] and not node["queues"]]
    for name, queue in found["queues"].items():
        waited, workers = queue["oldest_ready_seconds"], queue["workers"]
        if queue["paused"]:
            yield _paused(name, queue, found["pauses"][name])
            continue
        if waited is None or waited < late_after():
            continue
        if not workers and not _is_any_alive(found):
            # That is reported once, and not for each queue.
            continue
        if _is_held_back(name):
            continue
        words = {"queue": name, "time": duration(waited), "workers": workers, "running": queue["running"]}
        enters, leaves = rates.get(name, (0.0, 0.0))
        command = ""
        if not workers:
            kind, command = "starving", worker_command("-Q", name)
            says = gettext("%(queue)s: the oldest ready job has waited %(time)s, and no worker consumes its queue")
            means = gettext("Its jobs wait until a worker is started with this queue in its option -Q.")
            if quiet:
                # A quiet worker lists no queues: it may be the one that consumed this queue.
                means = gettext("No worker takes jobs of the queue %(queue)s: %(quiet)s was told to be quiet.") % {
                    "queue": name,
                    "quiet": ", ".join(node["hostname"] for node in quiet),
                }
                command = f"manage.py jobs tell resume {quiet[0]['id'][:8]}"
        elif not queue["running"]:
            # Workers whose processes are all at work are busy: then the queue does not stand still.
            kind = "standing" if any(_is_free(node) for node in found["nodes"] if name in node["queues"]) else "busy"
            says = ngettext(
                "%(queue)s: the oldest ready job has waited %(time)s although %(workers)s worker consumes its queue, "
                "and none of its jobs is running",
                "%(queue)s: the oldest ready job has waited %(time)s although %(workers)s workers consume its queue, "
                "and none of its jobs is running",
                workers,
            )
            means = gettext("The workers are busy with other queues, or hang. Look at what they run.")
        elif enters > leaves:
            kind = "growing"
            says = gettext("%(queue)s: %(in)s jobs a minute come, and %(out)s are done; the oldest waits %(time)s")
            means = gettext("It will not catch up by itself: start more workers, or make the task faster.")
            words |= {"in": f"{enters:.1f}", "out": f"{leaves:.1f}"}
        else:
            kind = "busy"
            says = ngettext(
                "%(queue)s: the oldest ready job has waited %(time)s; %(workers)s worker consumes its queue "
                "(%(running)s running)",
                "%(queue)s: the oldest ready job has waited %(time)s; %(workers)s workers consume its queue "
                "(%(running)s running)",
                workers,
            )
            means = gettext("It is being worked off.")
        yield Problem(kind, says % words, means, command=command, since=waited, about=name)


def _is_held_back(queue: str) -> bool:
    """Whether something (a limit) holds back the first ready job of the queue, so that no worker is at fault."""
    first = (rows.first() for rows in databases.each(in_line().filter(queue=queue).annotate(read_at=Now())))
    views = [View(job) for job in first if job is not None]
    return any(reason for view in views for waits in extensions.through("waits") for reason in waits(view))


def _paused(name: str, queue: dict[str, Any], pause: dict[str, Any]) -> Problem:
    number, words = queue["ready"], {"queue": name, "by": by_whom(pause["by"], pause["reason"])}
    says = gettext("the queue %(queue)s is paused%(by)s") % words
    if number:
        waits = ngettext("%(number)s job waits", "%(number)s jobs wait", number)
        says += "; " + waits % {"number": at_least(number, queue["capped"])}
    severity, since = WARNING if number else INFO, ago(pause["at"])
    means = gettext("No worker takes a job of this queue until it is resumed.")
    command = f"manage.py jobs resume {shlex.quote(name)}"
    return Problem("paused", says, means, severity=severity, command=command, since=since, about=name)


def _overdue(due: dict[str, Any]) -> Iterator[Problem]:
    number, since = due["count"], due["lag_seconds"]
    if since > late_after():
        says = ngettext(
            "%(number)s job has been due for %(time)s, and no worker has made it ready",
            "%(number)s jobs are due, the oldest for %(time)s, and no worker has made them ready",
            number,
        ) % {"number": number, "time": duration(since)}
        means = gettext("Every worker does this, every second: none is alive, or the database is very slow.")
        yield Problem("overdue", says, means, since=since, number=number)


def _unknown(tasks: dict[str, int]) -> Iterator[Problem]:
    ended = Node.objects.using(databases.home()).filter(dead_at__isnull=False).order_by("-dead_at")
    found = list(ended.only("hostname", "version", "dead_at", "tasks")[:NAMED]) if tasks else []
    for task, number in tasks.items():
        says = ngettext(
            "%(task)s: %(number)s job waits for a worker that knows this task",
            "%(task)s: %(number)s jobs wait for a worker that knows this task",
            number,
        ) % {"task": task, "number": number}
        means = gettext(
            "A deploy renamed or removed the task, or workers with the older code are still there. The jobs are kept, "
            "and run as soon as a worker knows it."
        )
        since = None
        if (knew := next((node for node in found if task in node.tasks), None)) is not None:
            last = gettext("; the last one that knew it was %(worker)s, version %(version)s")
            says += last % {"worker": knew.hostname, "version": knew.version or "?"}
            means = gettext(
                "The deploy since then renamed or removed the task. The jobs are kept, and run as soon as a worker "
                "knows it."
            )
            since = ago(knew.dead_at)
        yield Problem("unknown_task", says, means, about=task, number=number, since=since)


def _died(found: list[dict[str, Any]]) -> Iterator[Problem]:
    if not found:
        return
    names = ", ".join(dict.fromkeys(each["hostname"] for each in found[:NAMED]))
    says = ngettext("a worker died: %(names)s", "%(number)s workers died: %(names)s", len(found))
    means = gettext(
        "It did not stop in good order: killed, out of memory, or its machine went away. Its jobs were given back."
    )
    since = min(each["dead_seconds"] for each in found)
    keys = [node["id"] for node in found]
    yield Problem("dead", says % {"number": len(found), "names": names}, means, "", since, keys, len(found))


def _stuck(running: list[Any], nodes: list[dict[str, Any]]) -> Iterator[Problem]:
    usual, stuck = _usual(job.task for job in running if job.age.total_seconds() > HANGS), defaultdict(list)
    for job in running:
        seconds = job.age.total_seconds()
        words = {"task": job.task, "id": job.pk, "time": duration(seconds)}
        more = {"about": job.pk, "since": seconds, "command": f"manage.py jobs kill {job.pk}"}
        means = gettext("It may hang: neither an end nor a time limit has come. Look at it; kill it if it hangs.")
        if job.asked is not None and job.asked.total_seconds() > late_after():
            says = gettext("%(task)s: runs for %(time)s, and was asked to end %(asked)s ago")
            means = gettext("Its body has not come to a checkpoint since. Kill it, if it is not to go on.")
            words["asked"] = duration(job.asked.total_seconds())
        elif seconds > HANGS and seconds > FAR * usual.get(job.task, math.inf):
            says = gettext("%(task)s: runs for %(time)s, and 95 %% of its runs end within %(usual)s")
            words["usual"] = statistics.spent(usual[job.task])
        elif seconds > LONG:
            says = gettext("%(task)s: runs for %(time)s")
        else:
            continue
        stuck[str(job.node_id)].append(words)
        yield Problem("stuck", says % words, means, **more)
    for node in nodes:
        held = stuck[node["id"]]
        number = len(held)
        if held and number < (node["concurrency"] or 0) <= node["running"] and len(running) >= status.OLDEST:
            # Not all running jobs are listed.
            long = Job.objects.filter(
                node=node["id"], state=State.RUNNING, started_at__lt=Now() - datetime.timedelta(seconds=LONG)
            )
            number = sum(rows.count() for rows in databases.each(long))
        if node["concurrency"] and number >= node["concurrency"]:
            says = ngettext(
                "%(worker)s: its only process is held by a body that runs too long: %(what)s",
                "%(worker)s: all %(number)s processes are held by bodies that run too long: %(what)s",
                number,
            )
            times = defaultdict(list)
            for each in held[:NAMED]:
                times[each["task"]].append(each["time"])
            what = ", ".join(f"{task} ({', '.join(those)})" for task, those in times.items())
            means = gettext("It takes no other job until one of them ends: kill what hangs, or start another worker.")
            command = f"manage.py jobs kill {' '.join(str(each['id']) for each in held[:NAMED])}"
            words = {"worker": node["hostname"], "number": number, "what": what}
            yield Problem("held", says % words, means, command=command, about=node["id"])


def _usual(tasks: Iterable[str]) -> dict[str, float]:
    """By task, the seconds within which 95 % of its runs of the last day ended, if there were enough runs."""
    ran: dict[str, Counter[Any]] = defaultdict(Counter)
    names, begin = {*tasks}, statistics.floor(timezone.now(), HOUR) - 24 * HOUR
    for row in statistics.of(HOUR, begin, task__in=names, state=State.SUCCEEDED) if names else ():
        ran[row.task].update(row.ran)
    return {task: statistics.percentile(each, 0.95) or 0.0 for task, each in ran.items() if each.total() >= KNOWN}


def _unpruned(found: dict[str, Any]) -> Iterator[Problem]:
    for alias in conf().DATABASES if _is_any_alive(found) else ():
        if (at := unpruned.behind(alias)) is not None:
            says = gettext("prune is behind: the oldest job that should be gone ended %(time)s ago")
            means = gettext(
                "The oldest worker deletes what is past its retention, two seconds of every three. History grows "
                "faster, the retention was shortened a moment ago, or the database is slow."
            )
            command, since = "manage.py jobs prune --once", ago(at)
            yield Problem("unpruned", says % {"time": duration(since)}, means, command, since=since, about=alias)


def _failing(minutes: Sequence[Row], nodes: list[dict[str, Any]]) -> Iterator[Problem]:
    """The tasks that failed in the last hour, those with the most failures first."""
    # A job with a parked call waits for a person, who is told of the call.
    failed = [row for row in minutes if row.state == State.FAILED and row.error != EffectParked.__name__]
    every, number_of = statistics.counts(minutes, "task"), statistics.counts(failed, "task")
    worked: dict[str, Any] = {}
    for row in minutes:
        if row.state == State.SUCCEEDED:
            worked[row.task] = max(row.begin, worked.get(row.task, row.begin))
    # The statistics count by the minute.
    begin = timezone.now() - HOUR
    since_of = {task: worked[task] + MINUTE if task in worked else begin for task in number_of}
    latest = [row for row in failed if row.begin >= since_of[row.task]]
    often = {task for task, number in statistics.counts(latest, "task").items() if number >= EVERY_TIME}
    tried = _first_failures({task: since_of[task] for task in often})
    for task, number in number_of.most_common(NAMED):
        failures = [row for row in failed if row.task == task]
        words = {"task": task, "number": number, "all": every[task]}
        words["error"] = statistics.counts(failures, "error").most_common(1)[0][0] or "?"
        kind, since = "failed", ago(min(row.begin for row in failures))
        says = gettext("%(task)s: %(number)s of %(all)s failed this hour, mostly with %(error)s")
        means = gettext("They stay failed until they are retried.")
        if len(firsts := tried.get(task, ())) >= EVERY_TIME:
            kind, number, since = "failing", 1, ago(min(firsts))
            words |= {"firsts": at_least(len(firsts), len(firsts) == MOST), "time": duration(since)}
            says = gettext(
                "%(task)s: fails every time: all %(firsts)s first attempts of the last %(time)s, mostly with %(error)s"
            )
            means = gettext(
                "None succeeded in that time; %(number)s of the %(all)s jobs that ended this hour failed. Look at what "
                "was deployed or changed then."
            )
            # The last worker that started between the task's last success and its first failure.
            least, most = since - 60, HOUR.total_seconds() if task not in worked else ago(worked[task])
            if new := [node for node in nodes if least <= node["age_seconds"] <= most][-1:]:
                since = new[0]["age_seconds"]
                words |= {"worker": new[0]["hostname"], "version": new[0]["version"] or "?"}
                says = gettext(
                    "%(task)s: fails every time since the deploy of version %(version)s: %(firsts)s first attempts, "
                    "mostly with %(error)s"
                )
                means = gettext(
                    "None succeeded since %(worker)s was started; %(number)s of the %(all)s jobs that ended this hour "
                    "failed. Roll back, or mend the task."
                )
        yield Problem(kind, says % words, means % words, number=number, since=since, about=task)


def _first_failures(since: Mapping[str, Any]) -> dict[str, list[Any]]:
    """When first attempts failed, by task, among the newest failed jobs.

    A retry of an old job tells nothing about the task: it may fail because of its arguments, while other jobs succeed.
    """
    found: dict[str, list[Any]] = {task: [] for task in since}
    rows = Job.objects.filter(state=State.FAILED).annotate(first=KeyTextTransform("at", KeyTransform("0", "errors")))
    for failed in databases.each(rows) if since else ():
        newest = failed.order_by("-pk").values_list("task", "finished_at", "first")[:MOST]
        for task, finished_at, first in newest:
            at = (parse_datetime(first) if first else None) or finished_at
            if task in found and at is not None and timezone.is_aware(at) and at >= since[task]:
                found[task].append(at)
    return found
