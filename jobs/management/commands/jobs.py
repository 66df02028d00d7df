"""``manage.py jobs``: look at the jobs, retry and cancel them, and run maintenance apart from the workers."""

from __future__ import annotations

import datetime
import json
import logging
import math
import signal
import threading
import time
import uuid
from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from celery import current_app
from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter
from django.db import Error
from django.db.models import Count, DurationField, ExpressionWrapper, F, Max
from django.db.models.functions import Now
from django.utils.text import capfirst

from jobs import databases, lifecycle
from jobs.conf import conf
from jobs.databases import SideDatabase
from jobs.maintenance import rescue
from jobs.maintenance.prune import Prune
from jobs.maintenance.relay import Relay
from jobs.maintenance.rescue import Rescue
from jobs.models import ENDED, Job, Node, State

logger = logging.getLogger("jobs")

LIVE = (State.SCHEDULED, State.READY, State.RUNNING)

#: What ``run_once()`` of each may say that it did; the keys of ``--json``.
DONE = {
    "relay": ("published", "republished", "expired"),
    "rescue": ("nodes", "jobs"),
    "prune": ("jobs", "nodes", "messages"),
}


@dataclass(frozen=True, slots=True)
class Change:
    """What ``retry`` and ``cancel`` do to one job."""

    verb: str
    participle: str
    #: The states out of which it is possible.
    states: tuple[State, ...]
    transition: Callable[[uuid.UUID, str], bool]

    def attempt(self, text: str, dry_run: bool) -> tuple[bool, str]:
        """Whether it was (would be) done, and what to say about it."""
        try:
            key = uuid.UUID(text)
        except ValueError:
            return False, "is no valid UUID"
        for alias in conf().DATABASES:
            now = Job.objects.using(alias).filter(pk=key).values_list("state", flat=True)
            if (state := now.first()) is None:
                continue
            if state in self.states and dry_run:
                return True, f"would be {self.participle} (is {state})"
            if state in self.states and self.transition(key, alias):
                return True, f"{self.participle} (was {state})"
            # Race: somebody else was faster. The answer is what the row says now.
            state = now.first() or state
            if self.verb == "cancel" and state == State.RUNNING:
                return False, "is running: a running job cannot be cancelled yet; it was left alone"
            return False, f"is {state}: nothing to {self.verb}"
        return False, "is unknown"


class Help(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Django's order of options, and examples that keep their lines."""


class Command(BaseCommand):
    help = "Look at the jobs, retry and cancel them, and run maintenance apart from the workers."
    requires_system_checks = ["jobs"]

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        epilog = (
            "examples:\n  manage.py jobs status\n  manage.py jobs retry 6f1c2a34-...\n  manage.py jobs relay --help"
        )
        return super().create_parser(prog_name, subcommand, **{"formatter_class": Help, "epilog": epilog, **kwargs})

    def add_arguments(self, parser: CommandParser) -> None:
        subcommands = parser.add_subparsers(dest="subcommand", metavar="subcommand", required=True)
        for name, summary, more, options, examples in _subcommands():
            sub = subcommands.add_parser(
                name,
                help=summary,
                description=f"{capfirst(summary)}.\n\n{more}",
                epilog="examples:\n" + "\n".join(f"  manage.py jobs {example}" for example in examples),
                formatter_class=Help,
            )
            sub.set_defaults(run=getattr(self, name))
            for flag, settings in options:
                sub.add_argument(flag, **settings)
            _add_common_options(sub)

    def handle(self, *args: Any, **options: Any) -> None:
        options["run"](**options)

    def status(self, *, as_json: bool, live: bool, **options: Any) -> None:
        found = gather(live)
        if as_json:
            self._json(found)
        else:
            self._say("\n\n".join(as_text(found)))

    def retry(self, **options: Any) -> None:
        self._each(Change("retry", "retried", (State.FAILED, State.CANCELLED), lifecycle.replay), **options)

    def cancel(self, **options: Any) -> None:
        self._each(Change("cancel", "cancelled", (State.SCHEDULED, State.READY), lifecycle.cancel), **options)

    def _each(self, change: Change, *, ids: list[str], dry_run: bool, **options: Any) -> None:
        ids = list(dict.fromkeys(ids))
        refused = 0
        for text in ids:
            is_done, answer = change.attempt(text, dry_run)
            refused += not is_done
            style = self.style.SUCCESS if is_done else self.style.WARNING
            self.stdout.write(f"{text} {style(answer)}")
        if refused:
            raise CommandError(f"{refused} of {len(ids)} {'would' if dry_run else 'could'} not be {change.participle}.")

    def relay(self, **options: Any) -> None:
        relay = Relay(_project_app())
        self._maintain("relay", relay.run_once, conf().RELAY_INTERVAL, **options)

    def rescue(self, **options: Any) -> None:
        _project_app()
        watch = conf().DEAD_AFTER + 2 * conf().HEARTBEAT
        self._maintain("rescue", Rescue(SideDatabase()).run_once, conf().HEARTBEAT, watch=watch, **options)

    def prune(self, *, dry_run: bool, **options: Any) -> None:
        prune = Prune(SideDatabase())
        if dry_run:
            self._report("prune", prune.count(), **options, would=True)
        else:
            self._maintain("prune", prune.run_once, conf().PRUNE_INTERVAL, **options)

    def _maintain(
        self, name: str, run_once: Callable[[], dict[str, int]], interval: float, watch: float = 0.0, **options: Any
    ) -> None:
        """Run until a signal comes; with ``--once`` a single time, or for ``watch`` seconds."""
        once, quiet = options["once"], options["as_json"]
        if not quiet and (watch or not once):
            until = f"for {watch:g} s: only then is a silent worker dead" if once else "until a signal comes"
            self._say(f"{name}: one look every {interval:g} s {until}")
        total: Counter[str] = Counter()
        deadline = time.monotonic() + watch
        with _stopped_by_signals() as stopping:
            while not stopping.is_set():
                try:
                    done = run_once()
                except Exception as exc:
                    if once:
                        raise
                    _survive(name, exc)
                    done = {}
                if once:
                    total.update(done)
                    if time.monotonic() >= deadline:
                        break
                elif any(done.values()):
                    self._report(name, done, **options)
                stopping.wait(interval)
        if once:
            self._report(name, total, **options)

    def _report(self, name: str, done: dict[str, int], *, as_json: bool, would: bool = False, **options: Any) -> None:
        keys = list(done) if would else DONE[name]
        if as_json:
            self._json({key: done.get(key, 0) for key in keys})
            return
        parts = ", ".join(f"{key} {done[key]}" for key in keys if done.get(key)) or "nothing to do"
        self._say(f"{name}: {'would delete ' if would else ''}{parts}")

    def _json(self, value: Any) -> None:
        self._say(json.dumps(value, ensure_ascii=False))

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def _subcommands() -> Iterator[tuple[str, str, str, list[tuple[str, dict[str, Any]]], list[str]]]:
    """Name, summary, more help, options, examples."""
    as_json = ("--json", {"action": "store_true", "dest": "as_json", "help": "print JSON, and nothing else, to stdout"})
    once = ("--once", {"action": "store_true", "help": "do it once, report and end"})
    dry_run = ("--dry-run", {"action": "store_true", "help": "say what would be done, and change nothing"})
    live = ("--live", {"action": "store_true", "help": "leave out the ended jobs, whose count reads all history"})
    ids = ("ids", {"nargs": "+", "metavar": "ID", "help": "the id of a job (a UUID)"})
    loop = (
        "Every worker does this by itself; it may run here as well, any number of times. SIGTERM and Ctrl-C end it\n"
        "after the current look, a second signal at once. It says what it did, and nothing when it did nothing."
    )
    yield (
        "status",
        "counts by state and queue, workers, the oldest ready job, the lag of the relay",
        "Scheduled, ready and running jobs are counted through their partial indexes. Ended jobs have none: their\n"
        "count reads the whole table. --live leaves it out, for monitoring.",
        [as_json, live],
        ["status", "status --live --json"],
    )
    yield (
        "retry",
        "run failed or cancelled jobs again",
        "Retries and crashes are counted from zero again. The exit status is 1 if a job could not be retried.",
        [ids, dry_run],
        ["retry 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11", "retry --dry-run ID ID ID"],
    )
    yield (
        "cancel",
        "cancel scheduled or ready jobs",
        "A running job is left alone. The exit status is 1 if a job could not be cancelled.",
        [ids, dry_run],
        ["cancel 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11", "cancel --dry-run ID ID ID"],
    )
    yield (
        "relay",
        "publish jobs that are due, and those whose message was lost",
        f"{loop}\nThat a message was lost may show only over time: --once finds fewer of them.",
        [once, as_json],
        ["relay", "relay --once"],
    )
    yield (
        "rescue",
        "give back the jobs of dead workers",
        f"{loop}\n--once takes DEAD_AFTER + 2 * HEARTBEAT seconds: a heartbeat must be seen to stand still that long.",
        [once, as_json],
        ["rescue", "rescue --once --json"],
    )
    yield (
        "prune",
        "delete jobs that ended long ago (RETENTION, RETENTION_FAILED), and dead workers",
        loop,
        [once, dry_run, as_json],
        ["prune --once", "prune --dry-run"],
    )


def _add_common_options(parser: ArgumentParser) -> None:
    """Django's own options also behind the subcommand, where people write them."""
    for flag in ("--settings", "--pythonpath"):
        parser.add_argument(flag, default=SUPPRESS, help=SUPPRESS)
    for flag in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(flag, action="store_true", default=SUPPRESS, help=SUPPRESS)


def _project_app() -> Any:
    """The project's Celery app, with its tasks.

    Raises:
        CommandError: no app was made; Celery's fallback would publish to a broker that nobody reads.
    """
    app = current_app._get_current_object()
    if app.main == "default" and not app.set_as_current:
        raise CommandError(
            "The project's Celery app is not loaded: import it in the __init__.py of the package that holds the "
            "settings (from proj.celery import app)."
        )
    app.loader.import_default_modules()
    return app


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; a second signal ends the process in its usual way."""
    stopping = threading.Event()
    previous: dict[int, Any] = {}

    def stop(number: int, frame: Any) -> None:
        stopping.set()
        restore()

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping
    finally:
        restore()


def _survive(name: str, exc: Exception) -> None:
    """One broken look never stops the next."""
    if isinstance(exc, Error):
        logger.warning("%s cannot reach the database: %s", name, exc, extra={"action": "database_away"})
        for alias in conf().DATABASES:
            databases.drop(alias)
    else:
        logger.error("%s goes on after an error", name, exc_info=exc, extra={"action": f"{name}_error"})


# Status


def gather(live: bool) -> dict[str, Any]:
    """What ``status`` knows, summed up over all job databases. ``live`` leaves the ended jobs at None."""
    states: dict[str, int | None] = {state: None if live and state in ENDED else 0 for state in State}
    queues: dict[str, dict[str, int]] = {}
    running: Counter[uuid.UUID] = Counter()
    due, lag, oldest = 0, 0.0, None
    for alias in conf().DATABASES:
        rows = Job.objects.using(alias)
        for state in LIVE:
            # One statement for each: together they could not use their partial indexes.
            for queue, count in rows.filter(state=state).values_list("queue").annotate(Count("pk")):
                of_queue = queues.setdefault(queue, dict.fromkeys(LIVE, 0))
                of_queue[state] += count
                states[state] = (states[state] or 0) + count
        if not live:
            for state, count in rows.filter(state__in=ENDED).values_list("state").annotate(Count("pk")):
                states[state] = (states[state] or 0) + count
        running.update(dict(rows.filter(state=State.RUNNING).values_list("node_id").annotate(Count("pk"))))
        ready = rows.filter(state=State.READY).aggregate(age=_longest("run_at"))["age"]
        if ready is not None:
            oldest = max(oldest or 0.0, _seconds(ready))
        for waiting in (
            rows.filter(state=State.READY, dispatched_at=None),
            rows.filter(state=State.SCHEDULED, run_at__lte=Now()),
        ):
            late = waiting.aggregate(n=Count("pk"), age=_longest("run_at"))
            due += late["n"]
            lag = max(lag, _seconds(late["age"])) if late["n"] else lag
    nodes = Node.objects.using(databases.home())
    with databases.side() as side:
        silence = rescue.read_silence(side)
    return {
        "jobs": {str(state): count for state, count in states.items()},
        "queues": {name: {str(s): n for s, n in queues[name].items()} for name in sorted(queues)},
        "nodes": [
            {
                "id": str(node.pk),
                "hostname": node.hostname,
                "pid": node.pid,
                "queues": node.queues,
                "age_seconds": _seconds(node.age),
                "beat_seconds": round(silence[node.pk], 3) if node.pk in silence else None,
                "alive": silence.get(node.pk, math.inf) < conf().DEAD_AFTER,
                "running": running[node.pk],
            }
            for node in nodes.filter(dead_at=None)
            .order_by("started_at")
            .annotate(age=_age("started_at"))
            .defer("tasks")
        ],
        "dead_nodes": nodes.filter(dead_at__isnull=False, signed_off=False).count(),
        "oldest_ready_seconds": oldest,
        "relay": {"due": due, "lag_seconds": lag},
    }


def _longest(since: str) -> Any:
    """An aggregate: the age of the oldest, by the database's clock."""
    return Max(_age(since))


def _age(since: str) -> Any:
    return ExpressionWrapper(Now() - F(since), output_field=DurationField())


def _seconds(age: datetime.timedelta) -> float:
    return round(max(0.0, age.total_seconds()), 3)


def as_text(found: dict[str, Any]) -> Iterator[str]:
    yield table(
        [["queue", *LIVE]]
        + [[name, *counts.values()] for name, counts in found["queues"].items()]
        + [["total", *(found["jobs"][state] for state in LIVE)]]
    )
    ended = {state: found["jobs"][state] for state in ENDED}
    if None not in ended.values():
        yield table([["ended", *ended], ["total", *ended.values()]])
    if found["nodes"]:
        yield table(
            [["worker", "host", "pid", "up for", "last beat", "running", "queues"]]
            + [
                [
                    n["id"][:8],
                    n["hostname"],
                    n["pid"],
                    duration(n["age_seconds"]),
                    ("never" if n["beat_seconds"] is None else f"{duration(n['beat_seconds'])} ago")
                    + ("" if n["alive"] else " (silent)"),
                    n["running"],
                    ", ".join(n["queues"]),
                ]
                for n in found["nodes"]
            ]
        )
    alive = sum(node["alive"] for node in found["nodes"])
    oldest = found["oldest_ready_seconds"]
    relay = found["relay"]
    lines = [
        f"workers: {alive} alive, {len(found['nodes']) - alive} silent, {found['dead_nodes']} died",
        "no job is ready" if oldest is None else f"the oldest ready job waits since {duration(oldest)}",
        f"due and not published: {relay['due']}"
        + (f", the oldest since {duration(relay['lag_seconds'])}" if relay["due"] else ""),
    ]
    yield "\n".join(lines)


def table(rows: list[list[Any]]) -> str:
    """Columns in line; numbers to the right."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    is_number = [isinstance(cell, int) for cell in rows[-1]]
    return "\n".join(
        "  ".join(
            str(cell).rjust(width) if right else str(cell).ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in rows
    )


def duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
