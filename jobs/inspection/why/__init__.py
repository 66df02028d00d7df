"""Why a job is where it is: the reasons in the order in which they count, with evidence and cure.

The engine behind ``manage.py jobs why`` and the job's page. It reads, and changes nothing. Here stand the reasons of
jobs that run or ended, and what keeps those from running again.
"""

import math
import uuid
from collections.abc import Iterator
from typing import Any

from django.db.models.functions import Now
from django.utils.translation import gettext, ngettext

from jobs.calling import batches
from jobs.calling.entry import NAME, TICK
from jobs.conf import conf
from jobs.idempotency import effects
from jobs.inspection.times import duration
from jobs.inspection.why import waiting
from jobs.inspection.why.view import COUNTS, Reason, View
from jobs.lifecycle import unique
from jobs.models import ENDED, LIVE, Batch, Cancellation, Effect, Job, Schedule, State
from jobs.operations.selection import find

#: What the server's process that serves the run waits for.
_BLOCKING = "FROM unnest(pg_blocking_pids(%s)) AS pid JOIN pg_stat_activity AS activity USING (pid)"


def explain(key: uuid.UUID) -> tuple[View | None, list[Reason]]:
    """The job, if there is one of that id, and the reasons; never without a reason."""
    job = find(key, read_at=Now())
    if job is None and (batch := batches.find(key)) is not None:
        return None, [_batch(batch)]
    if job is None:
        says = gettext(
            "There is no such job in %(databases)s: the transaction that enqueued it was rolled back or is still open, "
            "the id is of a task that is no job, or the job ended long ago and was pruned."
        )
        cure = gettext(
            "Look for the id in the logs of the process that enqueued it; compare its DATABASE_URL with this one's."
        )
        names = list(conf().DATABASES)
        return None, [Reason("unknown", says, cure, {"databases": ", ".join(names)}, id=key, databases=names)]
    view = View(job)
    once: dict[str, Reason] = {}
    for look in (*LOOKS.get(job.state, FAILED), scheduled_by):
        for reason in look(view):
            # Two looks may find the same reason. It stands where it came first.
            once.setdefault(reason.code, reason)
    return view, list(once.values())


def scheduled_by(view: View) -> Iterator[Reason]:
    """Last, because it says where the job comes from."""
    if (name := view.job.headers.get(NAME)) is None:
        return
    tick = view.job.headers.get(TICK)
    made = gettext("The schedule %(name)s made it for its tick of %(tick)s.")
    says = made if tick else gettext("It was made by hand, of the schedule %(name)s.")
    cure = ""
    row = Schedule.objects.using(view.using).filter(pk=name).first()
    if row is not None and row.paused_at is not None:
        cure = gettext("The schedule is paused: manage.py jobs schedule --resume %r") % name
    yield Reason("schedule", says, cure, name=name, tick=tick)


def _batch(batch: Batch) -> Reason:
    """Why a batch has not ended."""
    counts = batches.counts(batch)
    live = Job.objects.using(batch._state.db).filter(batch=batch.pk, state__in=LIVE).order_by("pk").first()
    words = {"name": batch.name, "ended": sum(counts.get(state, 0) for state in ENDED), "all": sum(counts.values())}
    if batch.ended_at is not None or live is None:
        says, cure = gettext("It is a batch, %(name)s, of %(all)s jobs, and all have ended."), ""
        for called in batch.called.values():
            says += " " + gettext("It called %(task)s: job %(id)s.") % called
            cure = f"manage.py jobs why {called['id']}"
        return Reason("batch_ended", says, cure, words, called=batch.called)
    says = gettext("It is a batch, %(name)s: %(ended)s of %(all)s jobs have ended, and it waits for the others.")
    return Reason("batch_waits", says, f"manage.py jobs why {live.pk}", words, job=live.pk, **counts)


# A running job


def dead_worker(view: View) -> Iterator[Reason]:
    worker = view.own_worker
    if worker is not None and worker.is_alive:
        return
    others = [str(each) for each in view.workers if each.is_alive]
    if others:
        cure = gettext("Another worker gives the job back by itself.")
    else:
        cure = gettext("No other worker is alive to give the job back: start one (celery -A proj worker).")
    if worker is None:
        says = gettext("The worker that runs it is not known any more.")
        yield Reason("node_dead", says, cure, node=view.job.node_id, others=others)
        return
    if worker.dead_at is not None:
        says = gettext("The worker that ran it, %(worker)s, has been dead for %(ago)s.")
    else:
        says = gettext(
            "The worker that ran it, %(worker)s, has been silent for %(silence)s, and is dead after %(dead)s."
        )
    words = {"ago": view.ago(worker.dead_at), "dead": duration(conf().DEAD_AFTER)}
    words["silence"] = duration(worker.silence) if math.isfinite(worker.silence) else "?"
    evidence = {"node": worker.pk, "worker": str(worker), "silent_seconds": worker.silence, "others": others}
    yield Reason("node_dead", says, cure, words, **evidence)


def asked_to_end(view: View) -> Iterator[Reason]:
    if (note := Cancellation.objects.using(view.using).filter(pk=view.job.pk).first()) is not None:
        says = gettext("It was asked to end %(ago)s ago (%(why)s), and has not come to a checkpoint or to its end yet.")
        cure = gettext(
            "Call self.checkpoint() in long bodies. One that hangs ends with its time limit, or at once: manage.py "
            "jobs kill %s"
        )
        yield Reason("ending", says, cure % view.job.pk, {"ago": view.ago(note.at), "why": note.reason}, at=note.at)


def blocked(view: View) -> Iterator[Reason]:
    if (backend := view.job.backend) is not None:
        says = gettext(
            "It waits for a lock of the database process %(pid)s (%(state)s, its transaction open for %(since)s)."
        )
        yield from waiting.held_up(view, "database_lock", says, _BLOCKING, backend, backend=backend)


def calling(view: View) -> Iterator[Reason]:
    """The external call that the run makes at the moment."""
    calls = Effect.objects.using(view.using).filter(job=view.job.pk, lease=view.job.lease, state=Effect.State.SENDING)
    if (call := calls.first()) is not None:
        says = gettext("It makes the external call %(call)s, begun %(ago)s ago.")
        yield Reason("calling", says, "", {"ago": view.ago(call.created_at)}, call=str(call))


def runs(view: View) -> Iterator[Reason]:
    worker, job = view.own_worker, view.job
    if worker is not None and worker.is_alive:
        says = gettext(
            "It has been running for %(since)s on %(worker)s, whose last beat was %(silence)s ago (attempt %(lease)s)."
        )
        cure = gettext("To end it: manage.py jobs cancel %(id)s. If it hangs: manage.py jobs kill %(id)s")
        words = {"since": view.ago(job.started_at), "silence": duration(worker.silence), "lease": job.lease}
        evidence = {"node": worker.pk, "seconds": view.since(job.started_at), "silent_seconds": worker.silence}
        yield Reason("running", says, cure % {"id": job.pk}, {**words, "worker": worker}, **evidence)


# A job that ended


def succeeded(view: View) -> Iterator[Reason]:
    job = view.job
    evidence: dict[str, Any] = {"finished_at": job.finished_at, "lease": job.lease}
    code, says = "succeeded", gettext("It succeeded %(ago)s ago, at attempt %(lease)s.")
    if isinstance(job.options, dict) and job.options.get("replaced"):
        code, evidence = "replaced", {**evidence, "replay_of": job.replay_of}
        says = gettext("It ended %(ago)s ago and was replaced: another job goes on under its id (%(other)s).")
    elif job.replay_of is not None:
        code, evidence = "replayed", {**evidence, "replay_of": job.replay_of, "key": job.marker_key}
        says = gettext(
            "It succeeded %(ago)s ago and had nothing to do: the job %(other)s had done the same before (%(key)s)."
        )
    yield Reason(code, says, "", {"ago": view.ago(job.finished_at), "other": job.replay_of}, **evidence)


def cancelled(view: View) -> Iterator[Reason]:
    job, error = view.job, view.error or {"type": "Cancelled", "message": ""}
    evidence = {"finished_at": job.finished_at, "error": error["type"], "message": error["message"]}
    if error["type"] == "Expired":
        says = gettext("It expired %(ago)s ago: no worker had started it by its expires_at.")
        cure = gettext("If it is still wanted: manage.py jobs retry %s") % job.pk
        words = {"ago": view.ago(job.expires_at or job.finished_at)}
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
    if error["type"] == "EffectParked":
        yield from _parked(view)
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


def _parked(view: View) -> Iterator[Reason]:
    for call in effects.unsettled(view.using).filter(job=view.job.pk):
        says = ngettext(
            "The external call %(call)s waits for a person: nobody knows whether it happened (%(calls)s call).",
            "The external call %(call)s waits for a person: nobody knows whether it happened (%(calls)s calls).",
            call.calls,
        )
        cure = gettext("Look at the provider for its key. Then: manage.py jobs effects %s --happened | --not-happened")
        yield Reason("effect_parked", says, cure % call.pk, call=str(call), id=call.pk, calls=call.calls)


def taken_key(view: View) -> Iterator[Reason]:
    """First, because it decides what can be done about the others."""
    if (holder := unique.holder_of(view.job)) is not None:
        says = gettext("It cannot run again now: its unique key %(key)s is taken by the job %(holder)s (%(state)s).")
        cure = gettext("That one does the same work. If this one should run as well, retry it when that has ended.")
        words = {"key": repr(view.job.unique_key), "holder": holder.pk, "state": State(holder.state).label}
        yield Reason("unique_taken", says, cure, words, key=view.job.unique_key, job=holder.pk, state=holder.state)


#: For each state where reasons are looked for, in their order. Of other states, which no job should have, nobody knows
#: more than of those that failed.
LOOKS = {
    State.SCHEDULED: waiting.LOOKS,
    State.READY: waiting.LOOKS,
    State.RUNNING: (dead_worker, asked_to_end, blocked, calling, runs),
    State.SUCCEEDED: (succeeded,),
    State.CANCELLED: (taken_key, cancelled),
}
FAILED = (taken_key, failed)
