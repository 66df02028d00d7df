"""The ledger, for people: which calls are ambiguous, and what they keep jobs from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.translation import gettext, ngettext

from jobs.conf import conf
from jobs.contrib.effects.models import Effect
from jobs.contrib.inspection.view import SHOWN, Reason, View
from jobs.contrib.redaction.display import BLANK, shown, veil
from jobs.errors import EffectParked
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
