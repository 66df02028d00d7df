"""The reasons of an ended job, and what keeps it from running again."""

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext, ngettext

from jobs.contrib.inspection.view import COUNTS, Reason, View
from jobs.contrib.why import waiting
from jobs.lifecycle import unique
from jobs.models import State


def succeeded(view: View) -> Iterator[Reason]:
    job = view.job
    evidence: dict[str, Any] = {"finished_at": job.finished_at, "lease": job.lease}
    code, says = "succeeded", gettext("It succeeded %(ago)s ago, at attempt %(lease)s.")
    if isinstance(job.options, dict) and job.options.get("replaced"):
        code, evidence = "replaced", {**evidence, "replay_of": job.replay_of}
        says = gettext("It ended %(ago)s ago and was replaced: another job goes on under its id (%(other)s).")
    elif job.replay_of is not None:
        code, evidence = (
            "replayed",
            {**evidence, "replay_of": job.replay_of, "key": view.seen.text("key", job.marker_key)},
        )
        says = gettext(
            "It succeeded %(ago)s ago and had nothing to do: the job %(other)s had done the same before (%(key)s)."
        )
    yield Reason(code, says, "", {"ago": view.ago(job.finished_at), "other": job.replay_of}, **evidence)


def cancelled(view: View) -> Iterator[Reason]:
    job, error = view.job, view.error or {"type": "Cancelled", "message": ""}
    evidence = {"finished_at": job.finished_at, "error": error["type"], "message": error["message"]}
    if error["type"] == "Expired":
        says = gettext("It expired %(ago)s ago: no worker had started it by its expires_at.")
        if job.started_at is not None:
            says = gettext("It expired %(ago)s ago: %(error)s.")
        cure = gettext("If it is still wanted: manage.py jobs retry %s") % job.pk
        words = {"ago": view.ago(job.expires_at or job.finished_at), "error": error["message"]}
        yield Reason("expired", says, cure, words, **evidence, expires_at=job.expires_at)
    else:
        says = gettext("It was cancelled %(ago)s ago: %(error)s.")
        cure = gettext("To run it after all: manage.py jobs retry %s") % job.pk
        text = ": ".join(filter(None, (error["type"], error["message"])))
        yield Reason("cancelled", says, cure, {"ago": view.ago(job.finished_at), "error": text}, **evidence)


def failed(view: View) -> Iterator[Reason]:
    job, error = view.job, view.error or {"type": "?", "message": "", "at": ""}
    if error["type"] == "TypeError":
        yield from waiting.misfit(view)
    if error["type"] in ("WorkerLostError", "NodeLost"):
        says = gettext(
            "It failed %(ago)s ago: it was lost too often (%(crashes)s crashes, %(losses)s times with its worker). "
            "%(error)s."
        )
    elif job.retries:
        says = ngettext(
            "It failed %(ago)s ago, after %(retries)s retry: %(error)s.",
            "It failed %(ago)s ago, after %(retries)s retries: %(error)s.",
            job.retries,
        )
    else:
        says = gettext("It failed %(ago)s ago: %(error)s.")
    cure = gettext("If the cause is gone: manage.py jobs retry %s") % job.pk
    words = {"ago": view.ago(job.finished_at), "error": f"{error['type']}: {error['message']}"}
    evidence = {"error": error["type"], "message": error["message"], "at": error["at"]}
    evidence |= {name: getattr(job, name) for name in ("lease", *COUNTS)}
    yield Reason("failed", says, cure, {**words, "losses": job.node_losses}, **evidence)


def taken_key(view: View) -> Iterator[Reason]:
    """The unique key is taken. This comes first: it decides whether the job can run again."""
    if (holder := unique.holder_of(view.job)) is not None:
        says = gettext("It cannot run again now: its unique key %(key)s is taken by the job %(holder)s (%(state)s).")
        cure = gettext("That one does the same work. If this one should run as well, retry it when that has ended.")
        key = view.seen.text("key", view.job.unique_key)
        words = {"key": repr(key), "holder": holder.pk, "state": State(holder.state).label}
        yield Reason("unique_taken", says, cure, words, key=key, job=holder.pk, state=holder.state)
