"""The classes for problems. Extensions declare kinds of problems, and find problems, in their ``operator.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext

#: Severities, the worst first. The last one is for what is worth knowing, but not a problem.
ERROR, WARNING, INFO = SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Link:
    """A page of the admin that shows something; with a permission it is a button that fixes it."""

    label: Any
    #: The name of a URL without the app's label, and its values.
    page: str
    args: tuple[Any, ...] = ()
    query: Mapping[str, Any] = field(default_factory=dict)
    #: For a button: the permission to press it, what it posts, and a warning to show before.
    permission: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    warns: Any = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problems on the dashboard and in ``manage.py jobs status``."""

    severity: str
    #: The words that count it, with ``%(number)s``.
    many: Any
    #: Functions of what a problem is about: they return the page that shows it, and the button that fixes it.
    place: Callable[[Any], Link] | None = None
    button: Callable[[Any], Link] | None = None
    #: False: a person wants it so (a pause), or there is much to do, or the project's code is at fault.
    is_fault: bool = True
    #: The kind before which it is listed; empty: it comes last.
    before: str = ""
    #: A permission that readers need in the admin, besides that to read jobs.
    permission: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """
    Attributes:
        kind: the name of its :class:`Kind`.
        text: what the problem is.
        meaning: what it means, and what to do.
        command: the command to type, where a page has a button.
        since: for how many seconds; None: unknown.
        about: what it is about, for links: a queue, a task, a schedule, the key of a job.
        number: the number that the summary counts it as.
        severity: if it differs from that of its kind.
    """

    kind: str
    text: str
    meaning: str = ""
    command: str = ""
    since: float | None = None
    about: Any = None
    number: int = 1
    severity: str = ""

    @property
    def line(self) -> str:
        return "; ".join(filter(None, (self.text, self.command)))


def ago(at: Any) -> float:
    """Seconds since a moment."""
    return max(0.0, (timezone.now() - at).total_seconds())


def by_whom(who: str, why: str) -> str:
    return (gettext(" by %s") % who if who else "") + (f" ({why})" if why else "")
