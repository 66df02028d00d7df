"""Which tags a call has: its own, those of its task, and those of the block or the body around it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.utils.translation import gettext

from jobs.contrib.tags.models import Tags
from jobs.idempotency.keys import KeyTemplate
from jobs.lifecycle.run import Run, current, current_run

#: The innermost surrounding block: the run around it, and all tags that hold in it.
_block: ContextVar[tuple[Run | None, Tags] | None] = ContextVar("jobs.tags", default=None)


@contextmanager
def tagged(**tags: Any) -> Iterator[None]:
    """Give each call in the block these tags, beside those that hold around it; also a decorator for a function.

    ``with jobs.tagged(user=request.user.pk): ...`` The calls in the bodies of these jobs have them, too, and so have
    the jobs that follow them. A tag of the task, or of the call, wins over a tag of the block with the same name.

    Parameters:
        tags: names and values: text, whole numbers or UUIDs. All tags of a job have at most 255 characters of JSON.

    Raises:
        TypeError, ValueError: a tag is not valid.
    """
    before = _block.set((current_run(), Tags({**(_around() or {}), **Tags.of(tags, "tagged()")})))
    try:
        yield
    finally:
        _block.reset(before)


def _around() -> Mapping[str, str] | None:
    """The tags that hold at the calling code: those of its innermost block, else those of its job."""
    run, block = current_run(), _block.get()
    # A block around the whole run (``run_jobs()`` in a test) does not hold for calls in the run.
    if block is not None and block[0] is run:
        return block[1]
    job: Any = None if run is None else run.job
    return None if job is None else job.tags


def mark(task: Any, job: Any) -> None:
    """Give a call its tags. Raises as :meth:`Tags.of` and ``KeyTemplate.of``."""
    templates, is_said = task.tag_templates, vars(job).get("tags") is not None
    # Most calls have no tags, and are in no block and no body.
    if not templates and not is_said and _block.get() is None and current.get() is None:
        return
    said, around = job.tags, _around()
    if said or around or templates:
        own = {name: template.of(job.args, job.kwargs) for name, template in templates.items()}
        job.tags = Tags.of({**(around or {}), **own, **(said or {})})


def templates_of(task: type[Any]) -> dict[str, KeyTemplate]:
    """The templates of a task's option. Raises as :class:`KeyTemplate` and :meth:`Tags.of`."""
    given = inspect.getattr_static(task, "tags", None) or {}
    Tags.of(dict.fromkeys(given, "-"), "tags=")
    texts = {name: str(value) if type(value) is int else value for name, value in given.items()}
    return {name: KeyTemplate(f"tags[{name!r}]", text, task.body_signature) for name, text in texts.items()}


def parse(text: str) -> Tags:
    """Read what people write: ``user=5``, or several with commas between. ``ValueError``: it is no tag."""
    # A value may contain a comma: one separates tags only if a name follows.
    found = [part.partition("=") for part in re.split(r",(?=\s*[\w.-]+=)", text)]
    if not all(is_pair for _, is_pair, _ in found):
        raise ValueError(gettext("%(text)r is no tag: write user=5") % {"text": text})
    tags = {name.strip(): value.strip() for name, _, value in found}
    if len(tags) < len(found):
        raise ValueError(gettext("%(text)r has a name twice, and a job has one value of each") % {"text": text})
    return Tags.of(tags)
