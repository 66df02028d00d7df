"""The ledger, for people: which calls are ambiguous, and what they keep jobs from."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from django.db.models import BooleanField, Exists, ExpressionWrapper, OuterRef, Q, QuerySet
from django.utils.translation import gettext, ngettext

from jobs.conf import conf
from jobs.contrib.effects.models import Effect
from jobs.errors import EffectParked
from jobs.inspection.view import SHOWN, Reason, View
from jobs.lifecycle.display import BLANK, shown, veil
from jobs.lifecycle.transitions import now_plus
from jobs.maintenance.prune import FULL_WALK
from jobs.models import Job, State


def with_makers(rows: QuerySet[Effect]) -> QuerySet[Effect]:
    """The rows with ``is_made``: the run that began the call still runs. For :func:`status`."""
    running = Job.objects.using(rows.db).filter(pk=OuterRef("job"), lease=OuterRef("lease"), state=State.RUNNING)
    return rows.annotate(is_made=Exists(running))


def status(row: Any) -> str:
    """``sending`` (a run makes the call), ``ambiguous``, ``parked`` or ``sent``."""
    return "ambiguous" if row.state == Effect.State.SENDING and not row.is_made else str(row.state)


def unsettled(using: str) -> QuerySet[Effect]:
    """Calls that are ambiguous or parked, oldest first."""
    # exclude(), because that is the condition of the partial index.
    rows = with_makers(Effect.objects.using(using).exclude(state=Effect.State.SENT))
    return rows.filter(Q(state=Effect.State.PARKED) | Q(is_made=False)).order_by("pk")


def answer_of(effect: Effect, answer: Any) -> Any:
    """The answer to an external call, as people may see it: from the provider, or from a person."""
    if answer is None or conf().REDACT is None:
        return answer
    job = Job.objects.using(effect._state.db).filter(pk=effect.job).first()
    return BLANK if job is None else shown(job).value("answer", answer)


def of_job(view: View) -> list[Effect]:
    """The calls that no other job made after this one."""
    rows = with_makers(Effect.objects.using(view.using).filter(job=view.job.pk))
    found = list(rows.order_by("pk")[:SHOWN])
    veil(found)
    return found


# What is old

#: For each database: up to which row this process has come, and when it began.
_walks: dict[str, tuple[int, float]] = {}


def prune(using: str, budget: float) -> int:
    """Delete answered calls that are old, and whose job is gone; returns how many. It skips calls that stay."""
    deadline, done = time.monotonic() + budget, 0
    while (retention := conf().RETENTION_EFFECTS) is not None and (some := _next_old(using)):
        gone = ~Exists(Job.objects.using(using).filter(pk=OuterRef("job")))
        # It may have been answered long after it was begun.
        late = now_plus(-retention)
        rows = Effect.objects.using(using).filter(gone, pk__in=some, state=Effect.State.SENT, sent_at__lt=late)
        # By their keys alone: for a DELETE with a subquery MySQL reads, and locks, the whole table.
        if keys := list(rows.values_list("pk", flat=True)):
            done += Effect.objects.using(using).filter(pk__in=keys, state=Effect.State.SENT)._raw_delete(using)
        _walks[using] = (some[-1], _walks[using][1])
        if time.monotonic() > deadline:
            break
    return done


def _next_old(using: str) -> list[int]:
    """The keys of the next old rows, in the order of time; none at the end, until it is time for the next walk."""
    now = time.monotonic()
    place, began = _walks.get(using, (0, now))
    over = ExpressionWrapper(Q(created_at__lt=now_plus(-(conf().RETENTION_EFFECTS or 0))), BooleanField())
    rows = Effect.objects.using(using).filter(pk__gt=place).order_by("pk").values_list("pk", over)
    old = [key for key, is_old in rows[: conf().BATCH] if is_old]
    _walks[using] = (place, began) if old or now - began <= FULL_WALK else (0, now)
    return old


# Why a job is where it is


def reasons(view: View) -> Iterator[Reason]:
    found = _calling(view) if view.job.state == State.RUNNING else _parked(view)
    for reason in found:
        reason.permission, reason.is_cause = "view_effect", True
        yield reason


def _calling(view: View) -> Iterator[Reason]:
    """The external call that the run makes at the moment."""
    calls = Effect.objects.using(view.using).filter(job=view.job.pk, lease=view.job.lease, state=Effect.State.SENDING)
    if (call := calls.first()) is not None:
        veil([call])
        says = gettext("It makes the external call %(call)s, begun %(ago)s ago.")
        yield Reason("calling", says, "", {"ago": view.ago(call.created_at)}, call=str(call))


def _parked(view: View) -> Iterator[Reason]:
    if view.job.state != State.FAILED or view.error is None or view.error["type"] != EffectParked.__name__:
        return
    calls = list(unsettled(view.using).filter(job=view.job.pk))
    veil(calls)
    for call in calls:
        says = ngettext(
            "The external call %(call)s waits for a person: nobody knows whether it happened (%(calls)s call).",
            "The external call %(call)s waits for a person: nobody knows whether it happened (%(calls)s calls).",
            call.calls,
        )
        cure = gettext("Look at the provider for its key. Then: manage.py jobs effects %s --happened | --not-happened")
        yield Reason("effect_parked", says, cure % call.pk, call=str(call), id=call.pk, calls=call.calls)
