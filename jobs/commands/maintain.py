"""``manage.py jobs rescue|prune``: what every worker does by itself, on its own."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from django.core.management.base import CommandError
from django.db import Error

from jobs import databases, instance
from jobs.commands.base import AS_JSON, DRY_RUN, ONCE, Option, Subcommand
from jobs.conf import conf
from jobs.databases import SideDatabase
from jobs.maintenance.prune import Prune
from jobs.maintenance.rescue import Rescue
from jobs.project import celery_app

logger = logging.getLogger("jobs")

LOOP = (
    "Every worker does this by itself; it may run here as well, any number of times. SIGTERM and Ctrl-C end it\n"
    "after the current look, a second signal at once. It says what it did, and nothing when it did nothing."
)


class Maintain(Subcommand):
    """One of the siblings of ``jobs.maintenance``, once or until a signal comes."""

    options: ClassVar[Sequence[Option]] = (ONCE, AS_JSON)
    #: What its ``run_once()`` may say that it did; the keys of ``--json``.
    done: ClassVar[Sequence[str]]

    def maintain(
        self,
        run_once: Callable[[], dict[str, int]],
        interval: float,
        *,
        once: bool,
        as_json: bool,
        watch: float = 0.0,
        **options: Any,
    ) -> None:
        """Run until a signal comes; with ``--once`` a single time, or for ``watch`` seconds."""
        if not as_json and (watch or not once):
            until = f"for {watch:g} s: only then is a silent worker dead" if once else "until a signal comes"
            self.say(f"{self.name}: one look every {interval:g} s {until}")
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
                    if once:
                        raise
                    _survive(self.name, exc)
                    done = {}
                if once:
                    total.update(done)
                    if time.monotonic() >= deadline:
                        break
                elif any(done.values()):
                    self.report({key: done.get(key, 0) for key in self.done}, as_json)
                stopping.wait(interval)
        if once:
            self.report({key: total[key] for key in self.done}, as_json)

    def report(self, done: dict[str, int], as_json: bool, verb: str = "") -> None:
        if as_json:
            self.say_json(done)
            return
        parts = ", ".join(f"{key} {count}" for key, count in done.items() if count) or "nothing to do"
        self.say(f"{self.name}: {verb}{parts}")


class RunRescue(Maintain):
    name = "rescue"
    summary = "give back the jobs of dead workers"
    more = (
        f"{LOOP}\n--once takes DEAD_AFTER + 2 * HEARTBEAT seconds: a heartbeat must be seen to stand still that long."
    )
    examples = ("rescue", "rescue --once --json")
    done = ("nodes", "jobs")

    def run(self, **options: Any) -> None:
        _project_app()
        watch = conf().DEAD_AFTER + 2 * conf().HEARTBEAT
        self.maintain(Rescue(SideDatabase()).run_once, conf().HEARTBEAT, watch=watch, **options)


class RunPrune(Maintain):
    name = "prune"
    summary = "delete jobs that ended long ago (RETENTION, RETENTION_FAILED), and dead workers"
    more = LOOP
    options = (ONCE, DRY_RUN, AS_JSON)
    examples = ("prune --once", "prune --dry-run")
    done = ("jobs", "markers", "nodes", "messages")

    def run(self, *, dry_run: bool, **options: Any) -> None:
        prune = Prune(SideDatabase())
        if dry_run:
            self.report(prune.count(), options["as_json"], "would delete ")
        else:
            self.maintain(prune.run_once, conf().PRUNE_INTERVAL, **options)


def _project_app() -> Any:
    """The project's Celery app, with its tasks.

    Raises:
        CommandError: no app was made; Celery's fallback knows no task and its limits.
    """
    app = celery_app()
    if app is None:
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
