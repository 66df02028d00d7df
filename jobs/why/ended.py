"""How a job ended, and what keeps it from running again."""

from __future__ import annotations

from collections.abc import Iterator

from django.utils.translation import gettext, ngettext

from jobs import effects
from jobs.models import Job, State
from jobs.why.reason import Reason
from jobs.why.view import View
from jobs.why.waiting import misfit


def reasons(view: View) -> Iterator[Reason]:
    match view.job.state:
        case State.SUCCEEDED:
            yield from _succeeded(view)
        case State.CANCELLED:
            yield from _taken_key(view)
            yield from _cancelled(view)
        case _:
            # First, because it decides what can be done about the others.
            yield from _taken_key(view)
            yield from _failed(view)


def _succeeded(view: View) -> Iterator[Reason]:
    job = view.job
    evidence = {"finished_at": _text(job), "lease": job.lease}
    if job.replay_of is not None:
        says = gettext(
            "It succeeded %(ago)s ago and had nothing to do: the job %(other)s had done the same before (%(key)s)."
        )
        values = {"ago": view.ago(job.finished_at), "other": job.replay_of, "key": job.marker_key}
        yield Reason(
            "replayed", says % values, "", {**evidence, "replay_of": str(job.replay_of), "key": job.marker_key}
        )
        return
    says = gettext("It succeeded %(ago)s ago, at attempt %(lease)s.")
    yield Reason("succeeded", says % {"ago": view.ago(job.finished_at), "lease": job.lease}, "", evidence)


def _cancelled(view: View) -> Iterator[Reason]:
    job, error = view.job, view.error or {"type": "Cancelled", "message": ""}
    evidence = {"finished_at": _text(job), "error": error["type"], "message": error["message"]}
    if error["type"] == "Expired":
        expires = job.expires_at.isoformat() if job.expires_at else None
        says = gettext("It expired %(ago)s ago: no worker had started it by its expires_at.") % {
            "ago": view.ago(job.expires_at or job.finished_at)
        }
        cure = gettext("If it is still wanted: manage.py jobs retry %s") % job.pk
        yield Reason("expired", says, cure, {**evidence, "expires_at": expires})
    else:
        says = gettext("It was cancelled %(ago)s ago: %(error)s.") % {
            "ago": view.ago(job.finished_at),
            "error": ": ".join(filter(None, (error["type"], error["message"]))),
        }
        yield Reason("cancelled", says, gettext("To run it after all: manage.py jobs retry %s") % job.pk, evidence)


def _failed(view: View) -> Iterator[Reason]:
    job = view.job
    error = view.error or {"type": "?", "message": "", "at": ""}
    evidence = {
        "error": error["type"],
        "message": error["message"],
        "at": error["at"],
        **{name: getattr(job, name) for name in ("lease", "retries", "crashes", "node_losses", "snoozes")},
    }
    again = gettext("If the cause is gone: manage.py jobs retry %s") % job.pk
    values = {"error": f"{error['type']}: {error['message']}", "ago": view.ago(job.finished_at), "retries": job.retries}
    if error["type"] == "TypeError" and (misfits := list(misfit(view))):
        yield from misfits
    if error["type"] == "EffectParked":
        yield from _parked(view)
    if error["type"] in ("WorkerLostError", "NodeLost"):
        says = gettext(
            "It failed %(ago)s ago: it was lost too often (%(crashes)s crashes, %(losses)s node losses). %(error)s."
        )
        values |= {"crashes": job.crashes, "losses": job.node_losses}
    elif job.retries:
        says = ngettext(
            "It failed %(ago)s ago, after %(retries)s retry: %(error)s.",
            "It failed %(ago)s ago, after %(retries)s retries: %(error)s.",
            job.retries,
        )
    else:
        says = gettext("It failed %(ago)s ago: %(error)s.")
    yield Reason("failed", says % values, again, evidence)


def _parked(view: View) -> Iterator[Reason]:
    for call in effects.unsettled(view.using).filter(job=view.job.pk):
        says = ngettext(
            "The external call %(call)s waits for a person: nobody knows whether it happened (%(calls)s call).",
            "The external call %(call)s waits for a person: nobody knows whether it happened (%(calls)s calls).",
            call.calls,
        )
        cure = gettext("Look at the provider for its key. Then: manage.py jobs effects %s --happened | --not-happened")
        evidence = {"call": str(call), "id": call.pk, "calls": call.calls}
        yield Reason("effect_parked", says % {"call": call, "calls": call.calls}, cure % call.pk, evidence)


def _taken_key(view: View) -> Iterator[Reason]:
    holder = view.key_holder
    if holder is not None:
        says = gettext("It cannot run again now: its unique key %(key)s is taken by the job %(holder)s (%(state)s).")
        cure = gettext("That one does the same work. If this one should run as well, retry it when that has ended.")
        values = {"key": repr(view.job.unique_key), "holder": holder.pk, "state": State(holder.state).label}
        evidence = {"key": view.job.unique_key, "job": str(holder.pk), "state": holder.state}
        yield Reason("unique_taken", says % values, cure, evidence)


def _text(job: Job) -> str | None:
    return job.finished_at.isoformat() if job.finished_at else None
