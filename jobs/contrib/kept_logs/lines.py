"""The lines of a run: caught where any logger makes its record, and written when the run has ended.

They are written after the body's transaction, in one statement: so the lines of a body that was rolled back stay. A run
without a reported end keeps none: its process died, another run has its job, or its group was rolled back.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from django.core.signals import setting_changed
from django.db import transaction

from jobs import signals, store
from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.contrib.kept_logs.hidden import hidden
from jobs.contrib.kept_logs.models import LogLines
from jobs.lifecycle.run import Run, current_run
from jobs.models import Job
from jobs.models.values import safe_repr, scrub

#: How many lines, and characters, of an attempt are kept: one half from its beginning, the other from its end.
MOST, SIZE = 200, 64 * 1024
#: The most characters of a line; and for how many of a job's last attempts lines are kept.
LONGEST, ATTEMPTS = 4000, 20

#: The signals of the ends of runs.
ENDS = (signals.succeeded, signals.retried, signals.failed, signals.cancelled, signals.rescued)


class Lines:
    """The first and the last lines of a run."""

    def __init__(self) -> None:
        self.first: list[list[Any]] = []
        self.last: deque[list[Any]] = deque()
        self.dropped = self._used = self._size = 0

    def add(self, line: list[Any]) -> None:
        size = len(line[-1])
        if not self.last and len(self.first) < MOST // 2 and self._used + size <= SIZE // 2:
            self.first.append(line)
            self._used += size
            return
        self.last.append(line)
        self._size += size
        while len(self.last) > MOST // 2 or self._size > SIZE // 2:
            self._size -= len(self.last.popleft()[-1])
            self.dropped += 1

    def stored(self) -> dict[str, Any]:
        return {"first": self.first, "dropped": self.dropped, "last": [*self.last]}


_is_catching = False


def listen(is_on: bool) -> None:
    """Keep lines in this process from now on, or stop keeping them."""
    global _is_catching
    for end in ENDS:
        if is_on:
            end.connect(_write, dispatch_uid="jobs.contrib.kept_logs")
        else:
            end.disconnect(dispatch_uid="jobs.contrib.kept_logs")
    if is_on and not _is_catching:
        _is_catching = True
        _catch()


def _catch() -> None:
    # A handler is not enough: loggers that do not propagate, such as those of Celery's tasks, would not reach it, and
    # no logger would after Celery has set up the log of a worker.
    make = logging.getLogRecordFactory()

    def made(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if (run := current_run()) is not None:
            _note(run, record)
        return record

    logging.setLogRecordFactory(made)


def _note(run: Run, record: logging.LogRecord) -> None:
    # What our own log says of a job is in its row as well.
    # ``logging.makeLogRecord()`` makes one without a level, and fills it in later.
    if record.name != "jobs" and record.levelno is not None and record.levelno >= level_of(run.job.task):
        vars(run).setdefault("log_lines", Lines()).add(_line(record))


def _line(record: logging.LogRecord) -> list[Any]:
    try:
        text = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
    except Exception as exc:
        # Do not raise: the log itself only complains on stderr.
        says = record.msg if isinstance(record.msg, str) else safe_repr(record.msg)
        text = f"{says} {safe_repr(record.args)} ({exc!r})"
    return [round(record.created, 3), record.levelname, scrub(record.name, 200), scrub(text, LONGEST)]


@lru_cache(maxsize=1000)
def level_of(task: str) -> float:
    """The level from which on the lines of a task are kept; infinity: none are."""
    found = [level for pattern, level in conf().KEEP_LOGS.items() if fnmatchcase(task, pattern)]
    return logging.getLevelNamesMapping()[found[-1]] if found else float("inf")


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "JOBS":
        level_of.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobs.contrib.kept_logs.level")


def _write(job: Any, using: str, **kwargs: Any) -> None:
    run = current_run()
    # The signal may be about another job, which the body ended.
    if run is None or run.job is not job or (found := vars(run).pop("log_lines", None)) is None:
        return
    lines = LogLines(job=job.pk, attempt=job.lease, lines=hidden(job.task, found.stored()))
    try:
        with store.of(using).write_mutex(), transaction.atomic(using=using):
            # Race: the job may have been deleted, with its earlier lines, since its end.
            rows = Job.objects.using(using).filter(pk=job.pk).select_for_update()
            if rows.values_list("pk", flat=True).first() is None:
                return
            lines.save(using=using, force_insert=True)
            if job.lease > ATTEMPTS:
                kept = LogLines.objects.using(using).filter(job=job.pk)
                newest = kept.order_by("-attempt", "-pk").values_list("pk", flat=True)[:ATTEMPTS]
                kept.exclude(pk__in=[*newest])._raw_delete(using)
    except Exception:
        about = {"action": "log_lines_lost", "job": str(job.pk)}
        logger.warning("%s[%s] its lines could not be kept", job.task, job.pk, exc_info=sys.exc_info(), extra=about)
