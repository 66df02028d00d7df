"""Figure: something that is measured, of one peer after the other, in rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.goals import Goal
from benchmarks.scene import Scene


@dataclass(frozen=True, kw_only=True)
class Column:
    key: str
    title: str
    digits: int = 0
    #: ``"less"`` or ``"more"``; a chart is drawn of those that are one of both and have ``is_drawn``.
    better: str = ""
    is_drawn: bool = False


class Figure:
    name: ClassVar[str]
    title: ClassVar[str]
    #: How it is measured, in a sentence or two.
    about: ClassVar[str]
    columns: ClassVar[Sequence[Column]]
    goals: ClassVar[Sequence[Goal]] = ()

    #: Whom it is about; in a quick run, which leaves the figure out if there are none; and who takes part only when
    #: asked for by name.
    peers: ClassVar[Sequence[str]]
    quick_peers: ClassVar[Sequence[str]] = ()
    more_peers: ClassVar[Sequence[str]] = ()

    #: Parts of the measurement, each in a process of its own, with what :meth:`measure` is given.
    parts: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    quick_parts: ClassVar[Sequence[Mapping[str, Any]]] = ({},)

    #: In how many rounds of a full run it takes part. A quick run has one.
    rounds: ClassVar[int] = 3

    #: Seconds after which a part is given up.
    timeout: ClassVar[float] = 90.0

    def takes(self, peer: str, options: Mapping[str, Any]) -> bool:
        """Has this part a meaning for the peer?"""
        return True

    def measure(self, scene: Scene, **options: Any) -> dict[str, float | None]:
        raise NotImplementedError


#: Other manners of our own.
OURS = ("jobs-rabbitmq", "jobs-alone")

TRANSACTIONAL = ("procrastinate", "django-tasks-db", "django-q2")

#: One of each manner of enqueueing: to keep connections changes nothing there.
CALLERS = (
    "jobs",
    "celery-redis",
    "celery-rabbitmq",
    *TRANSACTIONAL,
    "huey-redis",
    "dramatiq-redis",
    "dramatiq-rabbitmq",
)
