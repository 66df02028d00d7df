"""Which arguments of a call are encrypted, and how they are written into its row."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from django.core.signals import setting_changed

from jobs.conf import conf, own_tasks
from jobs.contrib.redaction.display import names_of
from jobs.contrib.vault.tokens import encrypt, is_token
from jobs.models import Job

#: Options of a call that contain other calls.
FOLLOWERS = ("link", "link_error", "chain", "chord")


@lru_cache(maxsize=1000)
def of_task(name: str) -> frozenset[str] | None:
    """The names of a task's arguments that are encrypted; empty: all arguments; None: no argument."""
    found = [each for pattern, each in conf().ENCRYPT.items() if fnmatchcase(name, pattern)]
    if not found or name in own_tasks():
        return None
    return frozenset() if True in found else frozenset().union(*found)


def _forget(**kwargs: Any) -> None:
    of_task.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobs.vault")


def seal(task: Any, job: Job) -> None:
    """Encrypt what the settings say, in a row that is about to be written, also by a retry."""
    job.args, job.kwargs = sealed(job.task, job.args, job.kwargs)
    if any(name in job.options for name in FOLLOWERS):
        job.options = {**job.options, **{name: inside(job.options[name]) for name in FOLLOWERS if name in job.options}}


def sealed(
    name: str, args: list[Any], kwargs: dict[str, Any], is_partial: bool = False
) -> tuple[list[Any], dict[str, Any]]:
    if name == "jobs.send" and len(args) == 4:
        # jobs.send sends a message of another task: its name, arguments and options.
        return [args[0], *sealed(*args[:3]), inside(args[3])], kwargs
    if (names := of_task(name)) is None:
        return args, kwargs
    # Of a partial signature the call puts others before them: a result, or what an errback gets.
    places = [] if is_partial else names_of(name, len(args))
    return (
        # Arguments whose names are not known count as secret.
        [
            _seal(value) if not names or place is None or place in names else value
            for value, place in zip_longest(args, places)
        ],
        {key: _seal(value) if not names or key in names else value for key, value in kwargs.items()},
    )


def _seal(value: Any) -> Any:
    return value if is_token(value) else encrypt(value)


def inside(value: Any) -> Any:
    """The followers of a call, with the arguments of their signatures encrypted."""
    if isinstance(value, list):
        return [inside(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    found = {key: inside(each) for key, each in value.items()}
    if isinstance(name := found.get("task"), str) and "args" in found and "kwargs" in found:
        given = list(found["args"] or ()), dict(found["kwargs"] or {})
        found["args"], found["kwargs"] = sealed(name, *given, is_partial=not found.get("immutable"))
    return found
