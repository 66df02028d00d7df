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
    #: ``"less"`` or ``"more"``, or empty. Only with one of both, and with ``is_drawn``, there is a chart.
    better: str = ""
    is_drawn: bool = False


class Figure:
    name: ClassVar[str]
    title: ClassVar[str]
    #: How it is measured, in a sentence or two.
    about: ClassVar[str]
    columns: ClassVar[Sequence[Column]]
    goals: ClassVar[Sequence[Goal]] = ()

    #: The peers of a whole run; those of a quick run, which leaves the figure out if there are none; and those that
    #: take part only if they are asked for by name.
    peers: ClassVar[Sequence[str]]
    quick_peers: ClassVar[Sequence[str]] = ()
    more_peers: ClassVar[Sequence[str]] = ()

    #: The parts of the measurement, as arguments of :meth:`measure`. Each is a process of its own.
    parts: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    quick_parts: ClassVar[Sequence[Mapping[str, Any]]] = ({},)

    #: It takes part in so many rounds of a whole run. A quick run has one.
    rounds: ClassVar[int] = 3

    #: A part is given up after so many seconds.
    timeout: ClassVar[float] = 90.0

    def takes(self, peer: str, options: Mapping[str, Any]) -> bool:
        """Whether this part makes sense for the peer."""
        return True

    def measure(self, scene: Scene, **options: Any) -> dict[str, float | None]:
        raise NotImplementedError


#: Other ways to run our own queue.
OURS = ("jobs-rabbitmq", "jobs-alone")

TRANSACTIONAL = ("procrastinate", "oban", "pgqueuer", "awa", "django-tasks-db", "django-ox", "django-q2")

#: One peer for each way to enqueue. Kept connections make no difference there.
CALLERS = (
    "jobs",
    "celery-redis",
    "celery-rabbitmq",
    *TRANSACTIONAL,
    "huey-redis",
    "dramatiq-redis",
    "dramatiq-rabbitmq",
)
