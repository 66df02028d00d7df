"""What a running job does at the moment."""

from __future__ import annotations

from collections.abc import Iterator

from django.utils.translation import gettext

from jobs.conf import conf
from jobs.times import duration
from jobs.why.locked import blocked
from jobs.why.reason import Reason
from jobs.why.view import View


def reasons(view: View) -> Iterator[Reason]:
    yield from _dead_worker(view)
    yield from _asked_to_end(view)
    yield from blocked(view)
    yield from _calling(view)
    yield from _running(view)


def _dead_worker(view: View) -> Iterator[Reason]:
    worker = view.own_worker
    if worker is not None and worker.is_alive:
        return
    others = [each.name for each in view.alive]
    if worker is None:
        says = gettext("The worker that runs it is not known any more.")
        evidence: dict[str, object] = {"node": str(view.job.node_id)}
    else:
        silence = None if worker.silence == float("inf") else round(worker.silence, 3)
        evidence = {"node": str(worker.node.pk), "worker": worker.name, "silent_seconds": silence}
        if worker.node.dead_at is not None:
            says = gettext("The worker that ran it, %(worker)s, is dead since %(ago)s.")
            says %= {"worker": worker.name, "ago": view.ago(worker.node.dead_at)}
        else:
            says = gettext("The worker that ran it, %(worker)s, is silent since %(silence)s, and dead after %(dead)s.")
            says %= {
                "worker": worker.name,
                "silence": "?" if silence is None else duration(silence),
                "dead": duration(conf().DEAD_AFTER),
            }
    evidence["others"] = others
    if others:
        cure = gettext("Another worker gives the job back by itself.")
    else:
        cure = gettext("No other worker is alive to give the job back: start one (celery -A proj worker).")
    yield Reason("node_dead", says, cure, evidence)


def _asked_to_end(view: View) -> Iterator[Reason]:
    if (note := view.cancellation) is not None:
        says = gettext("It was asked to end %(ago)s ago (%(why)s), and has not come to a checkpoint or to its end yet.")
        cure = gettext("Call self.checkpoint() in long bodies; a body that hangs ends with its time limit.")
        yield Reason("ending", says % {"ago": view.ago(note.at), "why": note.reason}, cure, {"at": note.at.isoformat()})


def _calling(view: View) -> Iterator[Reason]:
    if (call := view.call) is not None:
        says = gettext("It makes the external call %(call)s, begun %(ago)s ago.")
        yield Reason("calling", says % {"call": call, "ago": view.ago(call.created_at)}, "", {"call": str(call)})


def _running(view: View) -> Iterator[Reason]:
    worker, job = view.own_worker, view.job
    if worker is None or not worker.is_alive:
        return
    says = gettext(
        "It runs since %(since)s on %(worker)s, whose last beat was %(silence)s ago (attempt %(lease)s)."
    ) % {
        "since": view.ago(job.started_at),
        "worker": worker.name,
        "silence": duration(worker.silence),
        "lease": job.lease,
    }
    evidence = {
        "node": str(worker.node.pk),
        "seconds": round(view.since(job.started_at), 3),
        "silent_seconds": round(worker.silence, 3),
    }
    yield Reason("running", says, gettext("To end it: manage.py jobs cancel %s") % job.pk, evidence)
