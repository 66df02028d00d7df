"""How far batches are, and why one has not ended."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

from django.utils.translation import gettext, ngettext

from jobs.contrib.batches.batch import counts
from jobs.contrib.batches.models import Batch
from jobs.contrib.inspection.view import Other, Reason
from jobs.models import ENDED, LIVE, UNSUCCESSFUL, Job, State
from jobs.store import databases


def other(what: Any) -> Other | None:
    row = databases.first(Batch.objects.filter(pk=what)) if isinstance(what, uuid.UUID) else what
    if not isinstance(row, Batch):
        return None
    return Other(row, (str(row), "batch_change", row.pk), partial(shown, row), partial(reasons, row))


def shown(batch: Batch) -> dict[str, Any]:
    """How far it is. It is ``running`` until all have ended."""
    counted, is_over = counts(batch), batch.ended_at is not None
    ended, total = sum(counted.get(state, 0) for state in ENDED), sum(counted.values())
    has_failed = any(counted.get(state) for state in UNSUCCESSFUL)
    state = State.RUNNING if not is_over else State.FAILED if has_failed else State.SUCCEEDED
    text = gettext("%(ended)s of %(total)s") % {"ended": ended, "total": total}
    percent = 100 if is_over else min(99, 100 * ended // max(1, total))
    return {"state": state.value, "percent": percent, "text": text, "label": batch.name, "is_over": is_over}


def reasons(batch: Batch) -> Iterator[Reason]:
    """Why a batch has not ended."""
    counted = counts(batch)
    live = Job.objects.using(batch._state.db).filter(batch=batch.pk, state__in=LIVE).order_by("pk").first()
    words: dict[str, Any] = {
        "name": batch.name,
        "ended": sum(counted.get(state, 0) for state in ENDED),
        "all": sum(counted.values()),
    }
    if batch.ended_at is not None or live is None:
        cure = ""
        says = ngettext(
            "It is a batch, %(name)s, of %(all)s job, which has ended.",
            "It is a batch, %(name)s, of %(all)s jobs, and all have ended.",
            words["all"],
        )
        if batch.ended_at is None:
            cure = gettext(
                "A worker calls what follows within a second or so. If none does, their log says why it cannot be "
                "called."
            )
        for called in batch.called.values():
            if databases.first(Job.objects.filter(pk=called["id"])) is not None:
                says += " " + gettext("It called %(task)s: job %(id)s.") % called
                cure = f"manage.py jobs why {called['id']}"
                continue
            none = gettext(
                "It called %(task)s, and there is no such job: the worker that called it did not know the task, the "
                "task is none of jobs, it is a chain or a group, or the job was pruned."
            )
            says += " " + none % called
            cure = gettext("See that all workers import the task (autodiscover_tasks, imports).")
        yield Reason("batch_ended", says, cure, words, called=batch.called)
        return
    says = ngettext(
        "It is a batch, %(name)s, of %(all)s job, and it waits for its end.",
        "It is a batch, %(name)s: %(ended)s of %(all)s jobs have ended, and it waits for the others.",
        words["all"],
    )
    yield Reason("batch_waits", says, f"manage.py jobs why {live.pk}", words, job=live.pk, **counted)
