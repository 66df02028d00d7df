"""``manage.py jobs rescue|prune``: what every worker does by itself, on its own."""

from __future__ import annotations

import logging
import signal
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.db import Error

from jobs import databases, instance
from jobs.commands.base import AS_JSON, DRY_RUN, JobsCommand, option, subcommand
from jobs.conf import conf
from jobs.databases import SideDatabase
from jobs.maintenance.prune import Prune
from jobs.maintenance.rescue import Rescue
from jobs.project import celery_app

logger = logging.getLogger("jobs")

ONCE = option("--once", "do it once, report and end", action="store_true")


@subcommand(ONCE, AS_JSON)
def rescue(out: JobsCommand, args: Namespace) -> None:
    """Give back the jobs of dead workers.

    Every worker does this by itself; it may run here as well, any number of times. SIGTERM and Ctrl-C end it
    after the current look, a second signal at once. It says what it did, and nothing when it did nothing.
    --once takes DEAD_AFTER + 2 * HEARTBEAT seconds: a heartbeat must be seen to stand still that long.

    examples:
      manage.py jobs rescue
      manage.py jobs rescue --once --json
    """
    app = celery_app()
    if app is None:
        # Celery's fallback knows no task and its limits.
        raise CommandError(
            "The project's Celery app is not loaded: import it in the __init__.py of the package that holds the "
            "settings (from proj.celery import app)."
        )
    app.loader.import_default_modules()
    watch = conf().DEAD_AFTER + 2 * conf().HEARTBEAT
    _repeat(out, args, Rescue(SideDatabase()).run_once, conf().HEARTBEAT, watch)


@subcommand(ONCE, DRY_RUN, AS_JSON)
def prune(out: JobsCommand, args: Namespace) -> None:
    """Delete jobs that ended long ago (RETENTION, RETENTION_FAILED), and dead workers.

    Every worker does this by itself; it may run here as well, any number of times. SIGTERM and Ctrl-C end it
    after the current look, a second signal at once. It says what it did, and nothing when it did nothing.

    examples:
      manage.py jobs prune --once
      manage.py jobs prune --dry-run
    """
    pruner = Prune(SideDatabase())
    if args.dry_run:
        _report(out, args, pruner.count(), "would delete ")
    else:
        _repeat(out, args, pruner.run_once, conf().PRUNE_INTERVAL)


def _repeat(
    out: JobsCommand, args: Namespace, run_once: Callable[[], dict[str, int]], interval: float, watch: float = 0.0
) -> None:
    """Run until a signal comes; with ``--once`` a single time, or for ``watch`` seconds."""
    name = args.subcommand
    if not args.as_json and (watch or not args.once):
        until = f"for {watch:g} s: only then is a silent worker dead" if args.once else "until a signal comes"
        out.say(f"{name}: one look every {interval:g} s {until}")
    total: Counter[str] = Counter()
    deadline = time.monotonic() + watch
    is_admitted = False
    databases.watch_links()
    with _stopped_by_signals() as stopping:
        while not stopping.is_set():
            try:
                if not is_admitted:
                    instance.check_all()
                    is_admitted = True
                done = run_once()
            except instance.NotAdopted as exc:
                raise CommandError(str(exc)) from exc
            except Exception as exc:
                if args.once:
                    raise
                # One broken look never stops the next.
                if isinstance(exc, Error):
                    logger.warning("%s cannot reach the database: %s", name, exc, extra={"action": "database_away"})
                    for alias in conf().DATABASES:
                        databases.drop(alias)
                else:
                    logger.error("%s goes on after an error", name, exc_info=exc, extra={"action": f"{name}_error"})
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
    if args.as_json:
        out.say_json(done)
    else:
        parts = ", ".join(f"{key} {count}" for key, count in done.items() if count) or "nothing to do"
        out.say(f"{args.subcommand}: {verb}{parts}")


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; a second signal ends the process in its usual way."""
    stopping = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT) if is_main}

    def stop(*_: Any) -> None:
        stopping.set()
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, stop)
    try:
        yield stopping
    finally:
        stop()
