"""What the checks have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning

from jobs.conf import conf, problems

Check = Callable[..., list[CheckMessage]]

USE_CELERY_SETTINGS = "celery_settings() in jobs/conf.py sets it well: {name} = {value!r}."


def careful(check: Callable[..., Iterable[CheckMessage]]) -> Check:
    """A check that itself fails says so, and stops nobody."""

    @wraps(check)
    def careful_check(*args: Any, **kwargs: Any) -> list[CheckMessage]:
        found = []
        try:
            for message in check(*args, **kwargs):
                found.append(message)  # noqa: PERF402 (keeps what was found before it failed)
        except Exception as exc:
            hint = "Put right what it names; what else this check would have said is not known."
            found.append(Warning(f"{check.__name__} failed: {exc!r}", hint=hint, id="jobs.W015"))
        return found

    return careful_check


def several(names: Iterable[str]) -> str:
    names = sorted(names)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def databases() -> list[tuple[str, Any]]:
    """The job databases and their settings; none if ``settings.JOBS`` is unusable, which E001 says."""
    return [] if problems() else [(alias, settings.DATABASES[alias]) for alias in conf().DATABASES]
