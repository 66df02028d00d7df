"""What needs attention, worst first: the one answer for the dashboard, ``manage.py jobs status`` and ``doctor``."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy, ngettext, ngettext_lazy

from jobs import extensions
from jobs.conf import worker_command
from jobs.inspection import census
from jobs.inspection.times import duration
from jobs.models import Node
from jobs.store import databases

#: Severities, the worst first. A remark of the last one is no problem.
ERROR, WARNING, INFO = SEVERITIES = ("error", "warning", "info")

#: The severity of each kind. This is the order in which they are listed.
KINDS: dict[str, str] = {
    **dict.fromkeys(("copied", "no_worker", "starving", "standing", "overdue", "unknown_task"), ERROR),
    **dict.fromkeys(("dead", "stuck", "growing"), WARNING),
    **dict.fromkeys(("paused",), WARNING),
    **dict.fromkeys(("busy",), INFO),
}

#: How the sentence counts each kind.
MANY: dict[str, Any] = {
    "copied": ngettext_lazy("%(number)s database is a copy", "%(number)s databases are copies", "number"),
    "no_worker": gettext_lazy("no worker is alive"),
    "starving": ngettext_lazy("no worker for %(number)s queue", "no worker for %(number)s queues", "number"),
    "standing": ngettext_lazy("%(number)s queue stands still", "%(number)s queues stand still", "number"),
    "overdue": ngettext_lazy("%(number)s job is overdue", "%(number)s jobs are overdue", "number"),
    "unknown_task": ngettext_lazy("%(number)s job of an unknown task", "%(number)s jobs of unknown tasks", "number"),
    "dead": ngettext_lazy("%(number)s worker died", "%(number)s workers died", "number"),
    "stuck": ngettext_lazy("%(number)s job seems stuck", "%(number)s jobs seem stuck", "number"),
    "growing": ngettext_lazy(
        "%(number)s queue grows faster than it drains", "%(number)s queues grow faster than they drain", "number"
    ),
    "paused": ngettext_lazy("%(number)s queue is paused", "%(number)s queues are paused", "number"),
    "busy": ngettext_lazy("%(number)s queue is behind", "%(number)s queues are behind", "number"),
}

#: Kinds of which :func:`is_fault` says no.
NO_FAULT = (
    "paused", "busy", "growing", "dead", "stuck",
)  # fmt: skip

LONG = 1800.0  #: Seconds after which a remark tells of a running body.

NAMED = 20  #: At most so many of one kind are named.


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """
    Attributes:
        text: what there is.
        meaning: what it means, and what to do.
        command: what to type, where a page has a button.
        since: seconds; None: nobody knows.
        about: of what it is, for links: a queue, a task, a schedule, the key of a job.
        number: how many the sentence counts.
    """

    kind: str
    severity: str
    text: str
    meaning: str = ""
    command: str = ""
    since: float | None = None
    about: Any = None
    number: int = 1

    @property
    def line(self) -> str:
        return "; ".join(filter(None, (self.text, self.command)))


def of(found: dict[str, Any], running: Iterable[Any] | None = None) -> list[Remark]:
    """The remarks on what there is, the worst first.

    Parameters:
        found: what :func:`census.gather` found; with ``rates``, jobs a minute into each queue and out of it, if
            somebody knows them.
        running: the oldest jobs that run (:func:`census.running_now`).
    """
    every = [
        *_copies(found["databases"]),
        *_no_worker(found),
        *_queues(found, found.get("rates", {})),
        *_overdue(found["due"]),
        *_unknown(found["unknown_tasks"]),
        *_died(found["died"]),
        *_stuck(census.running_now() if running is None else running),
        *(each for problems in extensions.through("problems") for each in problems(found)),
    ]
    order = [*KINDS]
    for kind, its in extensions.merged("kinds").items():
        order.insert(order.index(its.before) if its.before else len(order), kind)
    return sorted(every, key=lambda each: (SEVERITIES.index(each.severity), order.index(each.kind)))


def sentence(remarks: Iterable[Remark], more: Iterable[str] = ()) -> str:
    """One sentence of all remarks: how many problems there are, and which. ``more`` is said at the end."""
    total: Counter[str] = Counter()
    problems = 0
    for each in remarks:
        total[each.kind] += each.number
        problems += each.severity != INFO
    says = gettext("All is well")
    if problems:
        says = ngettext("%(number)s problem", "%(number)s problems", problems) % {"number": problems}
    many = MANY | {kind: its.many for kind, its in extensions.merged("kinds").items()}
    parts = [*(many[kind] % {"number": number} for kind, number in total.items()), *more]
    return f"{says}: {' · '.join(parts)}" if parts else f"{says}."


def is_fault(kind: str) -> bool:
    """Whether the installation is at fault, and not what somebody wanted, much to do, or the project's code."""
    return kind not in NO_FAULT if kind in KINDS else bool(extensions.merged("kinds")[kind].is_fault)


def remark(kind: str, text: str, meaning: str = "", **more: Any) -> Remark:
    """One of a known kind."""
    severity = KINDS[kind] if kind in KINDS else extensions.merged("kinds")[kind].severity
    return Remark(**{"kind": kind, "severity": severity, "text": text, "meaning": meaning, **more})


def _copies(marks: dict[str, Any]) -> Iterator[Remark]:
    for alias, mark in marks.items():
        if not mark["adopted"]:
            says = gettext(
                "the database %(database)r is marked as another one, %(mark)r, and it is %(is)r: workers refuse it "
                "until `manage.py jobs adopt`"
            )
            means = gettext("Its jobs may run at the original as well: here they wait until somebody adopts them.")
            yield remark("copied", says % {**mark, "database": alias, "mark": mark["marked_as"]}, means)


def _is_any_alive(found: dict[str, Any]) -> bool:
    return any(node["alive"] for node in found["nodes"])


def _no_worker(found: dict[str, Any]) -> Iterator[Remark]:
    if not _is_any_alive(found):
        waits = [queue["oldest_ready_seconds"] or 0.0 for queue in found["queues"].values() if not queue["paused"]]
        says, longest = gettext("no worker is alive"), max(waits, default=0.0)
        if longest >= census.late_after():
            says = gettext("no worker is alive, and the oldest ready job has waited %s") % duration(longest)
        means = gettext("Nothing that is called or comes due runs until one is started.")
        yield remark("no_worker", says, means, command=worker_command())


def _is_free(node: dict[str, Any]) -> bool:
    """Whether a worker takes jobs, and has a process without one."""
    return node["takes_jobs"] and (node["concurrency"] is None or node["running"] < node["concurrency"])


def _queues(found: dict[str, Any], rates: Mapping[str, tuple[float, float]]) -> Iterator[Remark]:
    quiet = [node for node in found["nodes"] if node["takes_jobs"] and not node["queues"]]
    for name, queue in found["queues"].items():
        waited, workers = queue["oldest_ready_seconds"], queue["workers"]
        if queue["paused"]:
            yield _paused(name, queue, found["pauses"][name])
            continue
        if waited is None or waited < census.late_after():
            continue
        # A limit may keep the first one, and then nothing is wrong.
        if any(keeps(name) for keeps in extensions.through("keeps")):
            continue
        words = {"queue": name, "time": duration(waited), "workers": workers, "running": queue["running"]}
        enters, leaves = rates.get(name, (0.0, 0.0))
        command = ""
        if not workers:
            if not _is_any_alive(found):
                # That is said once, and not of each queue.
                continue
            kind, command = "starving", worker_command("-Q", name)
            says = gettext("%(queue)s: the oldest ready job has waited %(time)s, and no worker consumes its queue")
            means = gettext("Its jobs wait until a worker is started with this queue in its option -Q.")
            if quiet:
                # A quiet worker has no queues: it may be the one that consumed this one.
                means = gettext("No worker takes jobs of the queue %(queue)s: %(quiet)s was told to be quiet.") % {
                    "queue": name,
                    "quiet": ", ".join(node["hostname"] for node in quiet),
                }
                command = f"manage.py jobs tell resume {quiet[0]['id'][:8]}"
        elif not queue["running"]:
            # With all their processes at work they are busy, and nothing stands still.
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
        yield remark(kind, says % words, means, command=command, since=waited, about=name)


def _paused(name: str, queue: dict[str, Any], pause: dict[str, Any]) -> Remark:
    number, words = queue["ready"], {"queue": name, "by": by_whom(pause["by"], pause["reason"])}
    says = gettext("the queue %(queue)s is paused%(by)s") % words
    if number:
        waits = ngettext("%(number)s job waits", "%(number)s jobs wait", number)
        says += "; " + waits % {"number": census.at_least(number, queue["capped"])}
    severity, since = WARNING if number else INFO, ago(pause["at"])
    means = gettext("No worker takes a job of this queue until somebody resumes it.")
    command = f"manage.py jobs resume {name}"
    return remark("paused", says, means, severity=severity, command=command, since=since, about=name)


def by_whom(who: str, why: str) -> str:
    return (gettext(" by %s") % who if who else "") + (f" ({why})" if why else "")


def _overdue(due: dict[str, Any]) -> Iterator[Remark]:
    number, since = due["count"], due["lag_seconds"]
    if since > census.late_after():
        says = ngettext(
            "%(number)s job has been due for %(time)s, and no worker has made it ready",
            "%(number)s jobs are due, the oldest for %(time)s, and no worker has made them ready",
            number,
        ) % {"number": number, "time": duration(since)}
        means = gettext("Every worker does this, every second: none is alive, or the database is very slow.")
        yield remark("overdue", says, means, since=since, number=number)


def _unknown(tasks: dict[str, int]) -> Iterator[Remark]:
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
        yield remark("unknown_task", says, means, about=task, number=number, since=since)


def ago(at: Any) -> float:
    return max(0.0, (timezone.now() - at).total_seconds())


def _died(found: list[dict[str, Any]]) -> Iterator[Remark]:
    if not found:
        return
    names = ", ".join(dict.fromkeys(each["hostname"] for each in found[:NAMED]))
    says = ngettext("a worker died: %(names)s", "%(number)s workers died: %(names)s", len(found))
    means = gettext(
        "It did not stop in good order: killed, out of memory, or its machine went away. Its jobs were given back."
    )
    since = min(each["dead_seconds"] for each in found)
    yield remark("dead", says % {"number": len(found), "names": names}, means, since=since, number=len(found))


def _stuck(running: Iterable[Any]) -> Iterator[Remark]:
    for job in running:
        seconds = job.age.total_seconds()
        words = {"task": job.task, "id": job.pk, "time": duration(seconds)}
        more = {"about": job.pk, "since": seconds, "command": f"manage.py jobs kill {job.pk}"}
        if job.asked is not None and job.asked.total_seconds() > census.late_after():
            says = gettext("%(task)s: runs for %(time)s, and was asked to end %(asked)s ago")
            means = gettext("Its body has not come to a checkpoint since. Kill it, if it is not to go on.")
            yield remark("stuck", says % {**words, "asked": duration(job.asked.total_seconds())}, means, **more)
        elif seconds > LONG:
            means = gettext("It may hang: neither an end nor a time limit has come. Look at it; kill it if it hangs.")
            yield remark("stuck", gettext("%(task)s: runs for %(time)s") % words, means, **more)
