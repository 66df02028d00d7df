"""What a running job does at the moment; how a job ended, and what keeps it from running again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext, ngettext

from jobs import effects, unique
from jobs.conf import conf
from jobs.models import Cancellation, Effect, State
from jobs.times import duration
from jobs.why.view import COUNTS, Reason, View
from jobs.why.waiting import held_up, misfit

#: What the server's process that serves the run waits for.
_BLOCKING = "FROM unnest(pg_blocking_pids(%s)) AS pid JOIN pg_stat_activity AS activity USING (pid)"


def dead_worker(view: View) -> Iterator[Reason]:
    worker = view.own_worker
    if worker is not None and worker.is_alive:
        return
    others = [each.name for each in view.workers if each.is_alive]
    if others:
        cure = gettext("Another worker gives the job back by itself.")
    else:
        cure = gettext("No other worker is alive to give the job back: start one (celery -A proj worker).")
    if worker is None:
        says = gettext("The worker that runs it is not known any more.")
        yield Reason("node_dead", says, cure, node=view.job.node_id, others=others)
        return
    values = {"worker": worker.name, "ago": view.ago(worker.node.dead_at), "dead": duration(conf().DEAD_AFTER)}
    values["silence"] = "?" if worker.silence == float("inf") else duration(worker.silence)
    if worker.node.dead_at is not None:
        says = gettext("The worker that ran it, %(worker)s, is dead since %(ago)s.")
    else:
        says = gettext("The worker that ran it, %(worker)s, is silent since %(silence)s, and dead after %(dead)s.")
    evidence = {"node": worker.node.pk, "worker": worker.name, "silent_seconds": worker.silence, "others": others}
    yield Reason("node_dead", says % values, cure, **evidence)


def asked_to_end(view: View) -> Iterator[Reason]:
    if (note := Cancellation.objects.using(view.using).filter(pk=view.job.pk).first()) is not None:
        says = gettext("It was asked to end %(ago)s ago (%(why)s), and has not come to a checkpoint or to its end yet.")
        cure = gettext("Call self.checkpoint() in long bodies; a body that hangs ends with its time limit.")
        yield Reason("ending", says % {"ago": view.ago(note.at), "why": note.reason}, cure, at=note.at)


def blocked(view: View) -> Iterator[Reason]:
    if (backend := view.job.backend) is not None:
        says = gettext(
            "It waits for a lock of the database process %(pid)s (%(state)s, its transaction open since %(since)s)."
        )
        yield from held_up(view, "database_lock", says, _BLOCKING, backend, backend=backend)


def calling(view: View) -> Iterator[Reason]:
    """The external call that the run makes at the moment."""
    calls = Effect.objects.using(view.using).filter(job=view.job.pk, lease=view.job.lease, state=Effect.State.SENDING)
    if (call := calls.first()) is not None:
        says = gettext("It makes the external call %(call)s, begun %(ago)s ago.")
        yield Reason("calling", says % {"call": call, "ago": view.ago(call.created_at)}, call=str(call))


def runs(view: View) -> Iterator[Reason]:
    worker, job = view.own_worker, view.job
    if worker is None or not worker.is_alive:
        return
    says = gettext("It runs since %(since)s on %(worker)s, whose last beat was %(silence)s ago (attempt %(lease)s).")
    values = {"since": view.ago(job.started_at), "worker": worker.name, "silence": duration(worker.silence)}
    evidence = {"node": worker.node.pk, "seconds": view.since(job.started_at), "silent_seconds": worker.silence}
    cure = gettext("To end it: manage.py jobs cancel %s") % job.pk
    yield Reason("running", says % {**values, "lease": job.lease}, cure, **evidence)


RUNNING = (dead_worker, asked_to_end, blocked, calling, runs)


def succeeded(view: View) -> Iterator[Reason]:
    job = view.job
    evidence: dict[str, Any] = {"finished_at": job.finished_at, "lease": job.lease}
    values = {"ago": view.ago(job.finished_at), "lease": job.lease, "other": job.replay_of, "key": job.marker_key}
    if job.replay_of is not None:
        says = gettext(
            "It succeeded %(ago)s ago and had nothing to do: the job %(other)s had done the same before (%(key)s)."
        )
        yield Reason("replayed", says % values, **evidence, replay_of=job.replay_of, key=job.marker_key)
    else:
        says = gettext("It succeeded %(ago)s ago, at attempt %(lease)s.")
        yield Reason("succeeded", says % values, **evidence)


def cancelled(view: View) -> Iterator[Reason]:
    job, error = view.job, view.error or {"type": "Cancelled", "message": ""}
    evidence = {"finished_at": job.finished_at, "error": error["type"], "message": error["message"]}
    if error["type"] == "Expired":
        says = gettext("It expired %(ago)s ago: no worker had started it by its expires_at.")
        cure = gettext("If it is still wanted: manage.py jobs retry %s") % job.pk
        ago = view.ago(job.expires_at or job.finished_at)
        yield Reason("expired", says % {"ago": ago}, cure, **evidence, expires_at=job.expires_at)
    else:
        says = gettext("It was cancelled %(ago)s ago: %(error)s.")
        cure = gettext("To run it after all: manage.py jobs retry %s") % job.pk
        text = ": ".join(filter(None, (error["type"], error["message"])))
        yield Reason("cancelled", says % {"ago": view.ago(job.finished_at), "error": text}, cure, **evidence)


def failed(view: View) -> Iterator[Reason]:
    job = view.job
    error = view.error or {"type": "?", "message": "", "at": ""}
    if error["type"] == "TypeError":
        yield from misfit(view)
    if error["type"] == "EffectParked":
        yield from _parked(view)
    counts = {name: getattr(job, name) for name in ("lease", *COUNTS)}
    if error["type"] in ("WorkerLostError", "NodeLost"):
        says = gettext(
            "It failed %(ago)s ago: it was lost too often (%(crashes)s crashes, %(losses)s node losses). %(error)s."
        )
    elif job.retries:
        says = ngettext(
            "It failed %(ago)s ago, after %(retries)s retry: %(error)s.",
            "It failed %(ago)s ago, after %(retries)s retries: %(error)s.",
            job.retries,
        )
    else:
        says = gettext("It failed %(ago)s ago: %(error)s.")
    says %= {
        **counts,
        "losses": job.node_losses,
        "ago": view.ago(job.finished_at),
        "error": f"{error['type']}: {error['message']}",
    }
    cure = gettext("If the cause is gone: manage.py jobs retry %s") % job.pk
    yield Reason("failed", says, cure, error=error["type"], message=error["message"], at=error["at"], **counts)


def _parked(view: View) -> Iterator[Reason]:
    for call in effects.unsettled(view.using).filter(job=view.job.pk):
        says = ngettext(
            "The external call %(call)s waits for a person: nobody knows whether it happened (%(calls)s call).",
            "The external call %(call)s waits for a person: nobody knows whether it happened (%(calls)s calls).",
            call.calls,
        )
        cure = gettext("Look at the provider for its key. Then: manage.py jobs effects %s --happened | --not-happened")
        evidence = {"call": str(call), "id": call.pk, "calls": call.calls}
        yield Reason("effect_parked", says % evidence, cure % call.pk, **evidence)


def taken_key(view: View) -> Iterator[Reason]:
    """First, because it decides what can be done about the others."""
    if (holder := unique.holder_of(view.job)) is not None:
        says = gettext("It cannot run again now: its unique key %(key)s is taken by the job %(holder)s (%(state)s).")
        cure = gettext("That one does the same work. If this one should run as well, retry it when that has ended.")
        values = {"key": repr(view.job.unique_key), "holder": holder.pk, "state": State(holder.state).label}
        yield Reason("unique_taken", says % values, cure, key=view.job.unique_key, job=holder.pk, state=holder.state)
