"""``manage.py jobs rescue|prune``: what every worker does by itself."""

import signal
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError

from jobs.conf import conf
from jobs.contrib.console.base import DRY_RUN, JobsCommand, option, project_app, subcommand
from jobs.contrib.pruning.prune import Prune, expired, is_over, unneeded
from jobs.contrib.sessions import links
from jobs.maintenance.rescue import Rescue
from jobs.models import Job
from jobs.store import databases, identity

ONCE = option("--once", "do it once, report and end", action="store_true")


@subcommand(ONCE)
def rescue(out: JobsCommand, args: Namespace) -> None:
    """Give back the jobs of dead workers.

    Every worker does this by itself; it may run here as well, any number of times. SIGTERM and Ctrl-C end it
    after the current look, a second signal at once. It says what it did, and nothing when it did nothing.
    --once takes DEAD_AFTER + 2 * HEARTBEAT seconds: a heartbeat must be seen to stand still that long.

    examples:
      manage.py jobs rescue
      manage.py jobs rescue --once --json
    """
    project_app()
    watch = conf().DEAD_AFTER + 2 * conf().HEARTBEAT
    with databases.side() as side:
        _repeat(out, args, Rescue(side).run_once, conf().HEARTBEAT, watch)


@subcommand(ONCE, DRY_RUN)
def prune(out: JobsCommand, args: Namespace) -> None:
    """Delete jobs that ended long ago (RETENTION, RETENTION_FAILED), and dead workers.

    Every worker does this by itself; it may run here as well, any number of times. SIGTERM and Ctrl-C end it
    after the current look, a second signal at once. It says what it did, and nothing when it did nothing.
    --dry-run counts jobs and markers; what else grows old (signals, events, external calls, nodes) goes uncounted.

    examples:
      manage.py jobs prune --once
      manage.py jobs prune --dry-run
    """
    if args.dry_run:
        _report(out, args, to_prune(), "would delete ")
    else:
        _repeat(out, args, Prune().run_once, conf().PRUNE_INTERVAL)


def to_prune() -> dict[str, int]:
    """What is to be deleted; a job that only an expired marker keeps is not counted yet."""
    jobs = (unneeded(Job.objects.filter(is_over(alias)), alias).count() for alias in conf().DATABASES)
    return {"jobs": sum(jobs), "markers": sum(expired(alias).count() for alias in conf().DATABASES)}


def _repeat(
    out: JobsCommand, args: Namespace, run_once: Callable[[], dict[str, int]], interval: float, watch: float = 0.0
) -> None:
    """Repeat until a signal comes. With ``--once``: one time, or for ``watch`` seconds."""
    name = args.subcommand
    if watch or not args.once:
        until = f"for {watch:g} s: only then is a silent worker dead" if args.once else "until a signal comes"
        out.say(f"{name}: one look every {interval:g} s {until}")
    total: Counter[str] = Counter()
    deadline = time.monotonic() + watch
    links.watch()
    with _stopped_by_signals() as stopping:
        while not stopping.is_set():
            try:
                identity.check_all()
                done = run_once()
            except identity.NotAdopted as exc:
                raise CommandError(str(exc)) from exc
            except Exception as exc:
                if args.once:
                    raise
                databases.note_failure(exc, name, {"action": f"{name}_error"})
            else:
                total.update(done)
                if args.once and time.monotonic() >= deadline:
                    break
                if not args.once and any(done.values()):
                    _report(out, args, done)
            stopping.wait(interval)
    if args.once:
        _report(out, args, total)


def _report(out: JobsCommand, args: Namespace, done: dict[str, int], verb: str = "") -> None:
    out.say_json(done)
    parts = ", ".join(f"{key} {count}" for key, count in done.items() if count)
    out.say(f"{args.subcommand}: {verb}{parts or ('nothing' if verb else 'nothing to do')}")


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set. A second signal ends the process as usual."""
    stopping = threading.Event()
    before: dict[int, Any] = {}

    def stop(*_: Any) -> None:
        stopping.set()
        for number, handler in before.items():
            signal.signal(number, handler)

    if threading.current_thread() is threading.main_thread():
        before.update({number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)})
    try:
        yield stopping
    finally:
        stop()
