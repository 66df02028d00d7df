"""The limits in force: those of the tasks' code and of ``JOBS["QUEUES"]``; a limit that was set by hand wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models.functions import Now

from jobs.conf import conf, is_ours
from jobs.conf.logs import logger
from jobs.contrib.limits.models import Limit as Row
from jobs.contrib.limits.rates import Limit, limit_of
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job
from jobs.models.values import named, scrub
from jobs.store import databases

#: The limits set by hand: the concurrency and the rate, by the name of the row.
Given = Mapping[str, tuple[int | None, str | None]]


@dataclass(frozen=True)
class Limits:
    tasks: dict[str, Limit] = field(default_factory=dict)
    queues: dict[str, Limit] = field(default_factory=dict)


def mark(task: Any, job: Job) -> None:
    """Write the key of its task's limit into the job of a call, so claims need not know the task."""
    job.limit_key = named(task.name, task.key_of("limit_key", job))


def name_of(queue: str) -> str:
    """The name of a queue's limit; no task has such a name."""
    return f"@{queue}"


#: The last answer of :func:`in_force`, and what it was computed from.
_last: tuple[Any, ...] = (None, 0, None, None, Limits())


def in_force(app: Any, given: Given | None = None) -> Limits:
    """The limits that this process knows.

    Parameters:
        given: the limits set by hand; None: those that the worker's supervisor read last.
    """
    global _last
    given = worker_state.limits if given is None else given
    tasks = {} if app is None else app.tasks
    made_of = (app, len(tasks), conf(), given)
    if all(old is new or old == new for old, new in zip(_last, made_of, strict=False)):
        return _last[-1]
    of_tasks = {name: getattr(task, "claim_limit", None) for name, task in tasks.items() if is_ours(task)}
    of_queues = {queue: limit_of(each.get("concurrency"), each.get("rate")) for queue, each in conf().QUEUES.items()}
    for name, (concurrency, rate) in given.items():
        known, key = (of_queues, name[1:]) if name.startswith("@") else (of_tasks, name)
        before = known.get(key) or Limit()
        try:
            known[key] = limit_of(
                before.slots if concurrency is None else concurrency, before.rate if rate is None else rate
            )
        except ValueError as exc:
            # Another release wrote the row, or a person did with SQL. It must not make claims fail.
            logger.error("the limit of %s is left out: %s", name, exc, extra={"action": "limit_wrong"})
    found = [{name: each for name, each in known.items() if each} for known in (of_tasks, of_queues)]
    _last = (*made_of, Limits(*found))
    return _last[-1]


def read() -> Given:
    """The limits set by hand."""
    rows = Row.objects.using(databases.home()).values_list("name", "concurrency", "rate")
    return {name: (concurrency, rate) for name, concurrency, rate in rows}


def set_by_hand(name: str, concurrency: int | None, rate: str | None, by: str = "", reason: str = "") -> None:
    """Set a limit for all workers; they obey it within a second or so. Without both, the settings and the code hold.

    Parameters:
        name: of a task, or of a queue (:func:`name_of`).
        rate: ``"0"`` removes the rate of the settings.

    Raises:
        ValueError: says what is allowed as a value.
    """
    limit_of(concurrency, rate)
    for what, value, most in (("the name", name, 300), ("the rate", str(rate or ""), 32)):
        if len(value) > most or "\0" in value:
            raise ValueError(f"{what} {value[:40]!r} is longer than {most} characters, or holds a NUL character")
    rows = Row.objects.using(databases.home())
    if concurrency is None and rate is None:
        rows.filter(pk=name).delete()
        return
    says = {"by": scrub(by, 150), "reason": scrub(reason, 1000), "at": Now()}
    rows.update_or_create(pk=name, defaults={"concurrency": concurrency, "rate": rate, **says})
