"""The reasons of a job that runs."""

import math
from collections.abc import Iterator

from django.utils.translation import gettext

from jobs import store
from jobs.conf import conf
from jobs.contrib.inspection.counts import worker_command
from jobs.contrib.inspection.times import duration
from jobs.contrib.inspection.view import Reason, View
from jobs.contrib.why import waiting
from jobs.models import Cancellation


def dead_worker(view: View) -> Iterator[Reason]:
    worker = view.own_worker
    if worker is not None and worker.is_alive:
        return
    others = [str(each) for each in view.workers if each.is_alive]
    if others:
        cure = gettext("Another worker gives the job back by itself.")
    else:
        cure = gettext("No other worker is alive to give the job back: start one (%s).") % worker_command()
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
        yield from waiting.held_up(view, "database_lock", says, "blocks", backend, backend=backend)


def runs(view: View) -> Iterator[Reason]:
    worker, job = view.own_worker, view.job
    if worker is not None and worker.is_alive:
        says = gettext(
            "It has been running for %(since)s on %(worker)s, whose last beat was %(silence)s ago (attempt %(lease)s)."
        )
        task = view.tasks.get(job.task)
        is_atomic = getattr(task, "atomic", False) and not getattr(task, "is_async", False)
        if is_atomic and store.of(view.using).has_one_writer:
            cure = gettext("To end it: manage.py jobs kill %(id)s. An open body on SQLite keeps jobs cancel waiting.")
        else:
            cure = gettext("To end it: manage.py jobs cancel %(id)s. If it hangs: manage.py jobs kill %(id)s")
        words = {"since": view.ago(job.started_at), "silence": duration(worker.silence), "lease": job.lease}
        evidence = {"node": worker.pk, "seconds": view.since(job.started_at), "silent_seconds": worker.silence}
        yield Reason("running", says, cure % {"id": job.pk}, {**words, "worker": worker}, **evidence)


LOOKS = (dead_worker, asked_to_end, blocked, runs)
