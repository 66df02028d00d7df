"""What follows what: the jobs of a chain, a group, a chord, or of a body that called them, as a drawing.

A column is a step, and a box is a job; many jobs of a kind are one box with their counts. Jobs that are not called yet
(the rest of a chain, the body of a chord) are drawn from the rows of the jobs before them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from django.utils.translation import gettext, ngettext

from jobs.contrib.pages import html
from jobs.models import LIVE, Job, State

#: At most MOST jobs are read, and MOST boxes drawn. If a caller has more than ALIKE jobs of one task, they are one box.
MOST, ALIKE = 100, 5

#: The size of a box, and of the space that it has, in pixels; and how long a name in it may be.
WIDTH, HEIGHT, COLUMN, ROW, LETTERS = 170, 38, 210, 50, 22


@dataclass(eq=False)
class Box:
    task: str
    #: Its jobs by their states; none: it is not called.
    states: Counter[str] = field(default_factory=Counter)
    #: The only job in it.
    job: Job | None = None
    #: What it follows.
    before: list[Box] = field(default_factory=list)
    #: Whether it may still be called.
    waits: bool = False
    column: int = 0
    row: int = 0

    @property
    def says(self) -> str:
        if not self.states:
            return gettext("not called yet") if self.waits else gettext("not called")
        if self.job is not None:
            return str(State(self.job.state).label)
        return ", ".join(f"{number} {State(state).label}" for state, number in sorted(self.states.items()))

    @property
    def name(self) -> str:
        name = self.task.rpartition(".")[2]
        return name if self.states.total() < 2 else f"{self.states.total()} x {name}"

    @property
    def look(self) -> str:
        """The worst state of its jobs."""
        order = ("failed", "cancelled", "running", "ready", "scheduled", "succeeded")
        return next((state for state in order if self.states[state]), "none")


def is_awaited(job: Job) -> bool:
    """Whether a job that is not called yet is to follow this one."""
    return isinstance(job.options, dict) and not {"chain", "chord"}.isdisjoint(job.options)


def drawn(own: Job, first: Job, called: Mapping[Any, Sequence[Job]]) -> dict[str, Any] | None:
    """The context of the template; None: it would say no more than a list.

    Parameters:
        called: the jobs that each job has called.
    """
    boxes = _boxes(own, first, called)
    if len(boxes) < 3:
        return None
    _place(boxes)
    height = 1 + max(box.row for box in boxes)
    left = len(boxes) - len(boxes[:MOST])
    boxes = boxes[:MOST]
    more = ngettext("and %(number)s more", "and %(number)s more", left) % {"number": left} if left else ""
    return {
        "width": (1 + max(box.column for box in boxes)) * COLUMN - COLUMN + WIDTH + 4,
        "height": height * ROW,
        "boxes": [_box(box, own) for box in boxes],
        "lines": [_line(one, box) for box in boxes for one in box.before],
        "more": more,
    }


def _boxes(own: Job, first: Job, called: Mapping[Any, Sequence[Job]]) -> list[Box]:
    found: dict[Any, Box] = {}
    boxes: list[Box] = []
    level: list[tuple[Box | None, Job]] = [(None, first)]
    #: Of chords: the id of each body, its signature, and the parts.
    bodies: dict[str, tuple[Any, list[Box]]] = {}
    while level:
        size = Counter((id(caller), job.task) for caller, job in level)
        for caller, job in level:
            is_alone = job.pk == own.pk or size[id(caller), job.task] <= ALIKE
            key = job.pk if is_alone else (id(caller), job.task)
            if key not in found:
                found[key] = Box(job.task, job=job if is_alone else None, before=[caller] if caller else [])
                boxes.append(found[key])
            box = found[job.pk] = found[key]
            box.states[job.state] += 1
            options = job.options if isinstance(job.options, dict) else {}
            if (body := _id(options.get("chord"))) is not None:
                parts = bodies.setdefault(body, (options["chord"], []))[1]
                parts += [] if box in parts else [box]
        level = [(found[job.pk], each) for _, job in level for each in called.get(job.pk, ()) if each.pk not in found]
    by_id = {str(key): box for key, box in found.items()}
    for body_id, (body, parts) in bodies.items():
        if (follows := by_id.get(body_id)) is None:
            follows = Box(str(body.get("task")), waits=any(part.states[state] for part in parts for state in LIVE))
            boxes.append(follows)
        follows.before = parts
    for box in [*boxes]:
        boxes += islice(_rest(box, by_id), MOST)
    return boxes


def _rest(box: Box, known: Mapping[str, Box]) -> Iterator[Box]:
    """The steps of its chain that are not called."""
    options = box.job.options if box.job is not None and isinstance(box.job.options, dict) else {}
    steps = options.get("chain")
    before, waits = box, bool(box.job and box.job.state in LIVE)
    # The list is reversed: its last step is the next one.
    for step in reversed(steps) if isinstance(steps, list) else ():
        if not isinstance(step, dict) or _id(step) in known or (box.job and box.job.state == State.SUCCEEDED):
            return
        before = Box(str(step.get("task")), before=[before], waits=waits)
        yield before


def _id(signature: Any) -> str | None:
    options = signature.get("options") if isinstance(signature, dict) else None
    found = options.get("task_id") if isinstance(options, dict) else None
    return None if found is None else str(found)


def _place(boxes: list[Box]) -> None:
    """Give each its column, behind all that it follows, and its row there."""
    for _ in boxes:
        before = [box.column for box in boxes]
        for box in boxes:
            # A person may have edited the rows by hand, so that they form a circle.
            box.column = min(len(boxes), max((1 + each.column for each in box.before), default=0))
        if before == [box.column for box in boxes]:
            break
    rows: Counter[int] = Counter()
    for box in boxes:
        box.row = rows[box.column]
        rows[box.column] += 1


def _box(box: Box, own: Job) -> dict[str, Any]:
    url = html.url_if_any("job_change", box.job.pk) if box.job is not None and box.job.pk != own.pk else ""
    if box.job is None and box.states:
        url = html.url_if_any("job_changelist", task=box.task)
    name = box.name if len(box.name) <= LETTERS else f"{box.name[: LETTERS - 1]}…"
    says = box.says if len(box.says) <= LETTERS + 4 else f"{box.says[: LETTERS + 3]}…"
    whole = f"{box.name}: {box.says}"
    if box.job is not None and box.job.pk == own.pk:
        whole = gettext("%(job)s (this job)") % {"job": whole}
    return {
        "x": box.column * COLUMN + 2, "y": box.row * ROW + 4, "name": name, "says": says, "whole": whole, "url": url,
        "look": box.look, "is_own": box.job is not None and box.job.pk == own.pk,
    }  # fmt: skip


def _line(one: Box, other: Box) -> str:
    """From the right side of one to the left side of the other."""
    x, y = one.column * COLUMN + 2 + WIDTH, one.row * ROW + 4 + HEIGHT // 2
    to, down = other.column * COLUMN + 2, other.row * ROW + 4 + HEIGHT // 2
    middle = (x + to) // 2
    return f"M{x} {y}C{middle} {y} {middle} {down} {to} {down}"
