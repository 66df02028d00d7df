"""Cancel, retry, kill, delete and move jobs by their ids, a queryset, or what they have in common.

Each is the operation of the same name of ``manage.py jobs``: at most one transition a job. The job's history says who
did it, and why. In a transaction of the caller, all changes commit, or none.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from celery.result import AsyncResult
from django.db.models import QuerySet
from django.utils import timezone

from jobs.conf import did_you_mean
from jobs.contrib.operations.actions import OPERATIONS
from jobs.contrib.operations.selection import FIELDS, Selection, full_name, identify
from jobs.lifecycle.run import current_job
from jobs.models import Job, State
from jobs.models.values import plain

#: Fields under the names that they have here.
NAMES = {"tags": "tag"}


class Changed(NamedTuple):
    """How many jobs were changed, and for each other job why it was not."""

    done: int
    refused: dict[uuid.UUID, str]


def cancel(which: Any = None, *, by: Any = "", reason: str = "", dry_run: bool = False, **fields: Any) -> Changed:
    """Cancel jobs that have not ended: ``jobs.cancel(tags={"user": 5}, by=request.user, reason="left")``.

    A running job is asked to end: at its next ``checkpoint()``, or at its end, when all of it is rolled back.

    Parameters:
        which: an id, a job, a result, a queryset of jobs, or several of the first three.
        by: who does it, a user or a text; in a body by default its job.
        reason: why, for the job's history.
        dry_run: change nothing, and say what would be done.
        fields: in place of ``which``, what they have in common: ``task=`` (a task, its name, or ``"shop.*"``),
            ``state=`` (one or several), ``queue=``, ``tags=``, ``since=`` and ``until=`` (a moment, an age, or text as
            for ``manage.py jobs``), and each other option of that command that selects jobs. Without ``state=``: jobs
            in the states that the operation is meant for.

    Raises:
        TypeError, ValueError: nothing, or something unknown, says which jobs. Nothing was changed.
    """
    return _do("cancel", which, by, reason, dry_run, fields)


def retry(which: Any = None, *, by: Any = "", reason: str = "", dry_run: bool = False, **fields: Any) -> Changed:
    """Run failed or cancelled jobs again; by ``fields`` only failed ones, unless they say so. As :func:`cancel`."""
    return _do("retry", which, by, reason, dry_run, fields)


def kill(which: Any = None, *, by: Any = "", reason: str = "", dry_run: bool = False, **fields: Any) -> Changed:
    """End running jobs at once, with their processes, after the commit. As :func:`cancel`."""
    return _do("kill", which, by, reason, dry_run, fields)


def delete(which: Any = None, *, by: Any = "", reason: str = "", dry_run: bool = False, **fields: Any) -> Changed:
    """Delete jobs that have ended, with their history. As :func:`cancel`."""
    return _do("delete", which, by, reason, dry_run, fields)


def move(
    which: Any = None, *, to: str, by: Any = "", reason: str = "", dry_run: bool = False, **fields: Any
) -> Changed:
    """Let waiting jobs go to the queue ``to``. As :func:`cancel`; ``ValueError``: the app knows no such queue."""
    return _do("move", which, by, reason, dry_run, fields, to)


def _do(
    name: str, which: Any, by: Any, reason: str, dry_run: bool, fields: Mapping[str, Any], value: str = ""
) -> Changed:
    operation = OPERATIONS[name].told(value, _name_of(by), reason)
    if (which is None) == (not fields):
        raise TypeError(f"jobs.{name}() needs to know which jobs: their ids or a queryset, or what they have in common")
    if which is None:
        outcomes = operation.attempt_all(_selection(name, fields, operation.meant), dry_run)
    else:
        outcomes = ((key, operation.attempt(key, dry_run)) for key in dict.fromkeys(_keys(which)))
    done, refused = 0, {}
    for key, outcome in outcomes:
        done += outcome.is_done
        if not outcome.is_done:
            refused[key] = outcome.says
    return Changed(done, refused)


def _name_of(by: Any) -> str:
    if not by and (job := current_job()) is not None:
        return f"{job.task}[{job.pk}]"
    return str(by.get_username() if hasattr(by, "get_username") else by)


def _keys(which: Any) -> Iterator[uuid.UUID]:
    """The ids. They are read before anything is changed."""
    if isinstance(which, QuerySet):
        if which.model is not Job:
            raise TypeError(f"{which.model.__name__} is no job: pass a queryset of jobs.models.Job")
        yield from list(which.values_list("pk", flat=True))
    elif isinstance(which, Job):
        yield which.pk
    elif isinstance(which, uuid.UUID):
        yield which
    elif isinstance(which, AsyncResult | str):
        try:
            yield identify(str(which.id if isinstance(which, AsyncResult) else which))
        except ValueError as exc:
            raise ValueError(f"{str(which)!r} {exc}") from exc
    elif isinstance(which, Iterable):
        for each in which:
            yield from _keys(each)
    else:
        raise TypeError(f"{which!r} is no job: pass an id, a job, a result, or a queryset of jobs.models.Job")


def _selection(operation: str, fields: Mapping[str, Any], meant: tuple[State, ...]) -> Selection:
    given = {NAMES.get(name, name): value for name, value in fields.items()}
    states = given.pop("state", meant)
    states = (states,) if isinstance(states, str) else tuple(states)
    if not states:
        # An empty list must not mean "all".
        raise ValueError("state= is empty: name a state, or leave it out")
    if odd := [state for state in states if state not in State.values]:
        raise ValueError(f"state={odd[0]!r} is none: {', '.join(State.values)}")
    for name in given.keys() - FIELDS.keys():
        known = {"state", *FIELDS, *NAMES} - {*NAMES.values()}
        raise TypeError(f"jobs.{operation}(): {name}= is unknown{did_you_mean(name, known)}")
    return Selection(states, {name: _value(name, value) for name, value in given.items()})


def _value(name: str, value: Any) -> Any:
    if name == "task":
        value = full_name(str(getattr(value, "name", value)))
    if isinstance(value, datetime.timedelta):
        return timezone.now() - value
    if isinstance(value, str | uuid.UUID):
        value = plain(value)
        if not value.strip():
            # An unset variable must not mean "all".
            raise ValueError(f"{name}= is empty: give it a value, or leave it out")
        return FIELDS[name].read(value)
    if value is None or value == {}:
        raise ValueError(f"{name}={value!r} would mean all jobs: give it a value, or leave it out")
    return value
