"""What a problem is. Extensions name the kinds that they find, and find them, in their ``operator.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext

#: Severities, the worst first. What has the last one is worth knowing, and no problem.
ERROR, WARNING, INFO = SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Link:
    """A page of the admin that shows something; or a button that mends it, if it has a permission."""

    label: Any
    #: The name of a URL without the app's label, and its values.
    page: str
    args: tuple[Any, ...] = ()
    query: Mapping[str, Any] = field(default_factory=dict)
    #: Of a button: who may press it, what it posts, and what to know before.
    permission: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    warns: Any = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problems on the dashboard and in ``manage.py jobs status``."""

    severity: str
    #: The words that count it, with ``%(number)s``.
    many: Any
    #: What a problem is about gives the page that shows it, and the button that mends it.
    place: Callable[[Any], Link] | None = None
    button: Callable[[Any], Link] | None = None
    #: False: it is wanted (a pause), or there is much to do, or the project's code is at fault.
    is_fault: bool = True
    #: The kind before which it is listed; empty: it comes last.
    before: str = ""
    #: Who may read it in the admin, beside those who may read jobs: a permission.
    permission: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """
    Attributes:
        kind: the name of its :class:`Kind`.
        text: what there is.
        meaning: what it means, and what to do.
        command: what to type, where a page has a button.
        since: seconds; None: unknown.
        about: of what it is, for links: a queue, a task, a schedule, the key of a job.
        number: how many the sentence counts.
        severity: if it is not that of its kind.
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
