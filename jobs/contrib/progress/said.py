"""How far bodies are, as they report it by ``self.progress()``, or by Celery's ``update_state`` with such numbers."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple

from jobs.conf import conf
from jobs.contrib.redaction.display import shown
from jobs.contrib.results import store
from jobs.contrib.results.said import leave
from jobs.lifecycle.run import Run
from jobs.models import Job, State
from jobs.models.values import scrub

#: The state from Celery's manual, which packages that draw bars look for; and the seconds for which it is kept.
PROGRESS, KEPT = "PROGRESS", 86400.0

#: How many bytes of the text are kept.
MOST = 1000


class Progress(NamedTuple):
    done: float
    #: None: it is not known how much is left.
    total: float | None
    text: str

    @property
    def percent(self) -> int | None:
        """Never 100 before the end."""
        # Compute with floats, and convert last: the quotient may be infinite.
        return None if not self.total else int(max(0, min(99, 100.0 * self.done / self.total)))

    def __str__(self) -> str:
        how_far = f"{self.done:g}" if self.percent is None else f"{self.percent} %"
        return f"{how_far} {self.text}".strip()


def say(run: Run, done: float, total: float | None, text: str) -> None:
    """See ``Task.progress``."""
    for name, value in (("done", done), ("total", 0 if total is None else total)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"progress: {name} must be a number, and not {value!r}")
        if not math.isfinite(value):
            raise ValueError(f"progress: {name} must be finite, and not {value!r}")
    # A longer text would cost a statement each time.
    said = Progress(done, total, scrub(str(text), 500).encode()[:MOST].decode(errors="ignore"))
    result = {"current": done, "total": total, "percent": said.percent, "description": said.text}
    meta = json.dumps({"status": PROGRESS, "result": result, "traceback": None, "children": []}, ensure_ascii=False)
    key, lease = run.job.task_id, run.job.lease
    if not leave(run.slot, store.packed(key, meta, KEPT, lease)):
        run.aside(lambda: store.Store().write(key, meta, KEPT, lease))


def of(jobs: Iterable[Job]) -> dict[uuid.UUID, Progress]:
    """What the last run of each job reported, as people may see it. One query for all jobs; without jobs, no query."""
    every = list(jobs)
    found = as_said(every)
    if conf().REDACT is not None:
        known = {job.pk: job for job in every}
        found = {key: said._replace(text=shown(known[key]).text("progress", said.text)) for key, said in found.items()}
    return found


def as_said(jobs: Iterable[Job]) -> dict[uuid.UUID, Progress]:
    """The same without redaction, not to be shown to people: it reads no arguments."""
    # A list does not read the options.
    some = [job for job in jobs if job.lease and job.state != State.SUCCEEDED]
    keys = {job.task_id if "options" in job.__dict__ else str(job.pk): job for job in some}
    found = store.Store().read(keys) if keys else {}
    read = {keys[key].pk: _read(meta) for key, (meta, lease) in found.items() if lease == keys[key].lease}
    return {key: said for key, said in read.items() if said is not None}


def _read(meta: str) -> Progress | None:
    try:
        result: Any = json.loads(meta)["result"]
        total = result.get("total")
        total = float(total) if total else None
        done, text = float(result["current"]), str(result.get("description") or "")
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        # The body stored something else.
        return None
    return Progress(done, total, text) if math.isfinite(done) and math.isfinite(total or 0.0) else None
