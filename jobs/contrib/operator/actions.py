"""More operations on jobs: kill them, give them another queue or priority, or delete them."""

from __future__ import annotations

import uuid
from typing import Any

from celery import Celery, current_app
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from kombu.common import Broadcast

from jobs import extensions
from jobs.calling import calls
from jobs.conf import celery_app
from jobs.conf.logs import logger
from jobs.contrib.operations import by_hand
from jobs.contrib.operations.actions import OPERATIONS, Operation, Refused
from jobs.contrib.operations.selection import check_queue
from jobs.contrib.operator import kill
from jobs.contrib.pruning import prune
from jobs.lifecycle.transitions import now_plus
from jobs.models import ENDED, Job, Marker, State
from jobs.store import databases

#: Seconds in which the broker may deliver another program's message again. Without the job's row it would run twice.
ADOPTED_STAYS = 86400.0


class Kill(Operation):
    """Kill running jobs, on whatever worker they are.

    Each ends cancelled at once and does not come back. The process that runs it is killed, and on PostgreSQL its
    transaction is ended. What it did in its transaction is rolled back; what a body with atomic=False has committed
    stays. A thread (-P threads, -P solo) cannot be killed: there the body goes on to its end, and is rolled back then.
    """

    name = "kill"
    label = _("Kill")
    permission = "kill_job"
    participle = _("killed")
    states = meant = (State.RUNNING,)
    otherwise = _("is %(state)s: it does not run")
    warns = _(
        "It ends at once, with its process, and does not come back. What it did in its transaction is rolled back; "
        "what a body with atomic=False has committed stays. In a pool of threads the body goes on to its end, and is "
        "rolled back then."
    )

    def prepare(self, key: uuid.UUID, using: str) -> None:
        kill.order(key, using, self.by_hand("killed"))

    def change(self, key: uuid.UUID, using: str, state: str) -> bool:
        try:
            return kill.kill(key, using, self.by_hand("killed"))
        except kill.Held as exc:
            raise Refused(str(exc)) from None


class Move(Operation):
    """Let waiting jobs go to another queue.

    A worker that consumes that queue runs them.
    """

    name = "move"
    label = _("Change queue")
    otherwise = _("is %(state)s: nothing to move")
    asks = _("To which queue:")
    example = "mail"

    def read(self, value: str) -> tuple[str, Any]:
        check_queue(value)
        if (app := celery_app()) is not None:
            check_known(app, value)
        return value, format_lazy(_("moved to {queue}"), queue=value)

    def change(self, key: uuid.UUID, using: str, state: str) -> bool:
        rows = Job.objects.using(using).select_for_update().filter(pk=key)
        job = databases.again_if_moved(using, rows.first)
        if job is None:
            return False
        # A person may have edited the row by hand.
        given = job.options if isinstance(job.options, dict) else {}
        options = {name: value for name, value in given.items() if name not in ("exchange", "routing_key")}
        return by_hand.redirect(key, using, {"queue": self.value, "options": options})


class Prioritize(Operation):
    """Give waiting jobs another priority, 0 to 255.

    The order is that of the project's broker: with RabbitMQ the highest number runs first, with Redis and
    without a broker the lowest.
    """

    name = "prioritize"
    label = _("Change priority")
    otherwise = _("is %(state)s: nothing to prioritize")
    asks = _("Priority (0 to 255; whether more is first, the broker decides):")
    example = "9"

    def read(self, value: str) -> tuple[str, Any]:
        if not (value.isascii() and value.isdecimal() and int(value) <= 255):
            says = gettext("A priority is a whole number from 0 to 255, and not %(value)r.")
            raise ValueError(says % {"value": value})
        return str(int(value)), format_lazy(_("given priority {number}"), number=int(value))

    def change(self, key: uuid.UUID, using: str, state: str) -> bool:
        rank = calls.rank_of(current_app, int(self.value))
        return by_hand.redirect(key, using, {"priority": int(self.value), "rank": rank})


class Delete(Operation):
    """Delete jobs that ended, with their history.

    For ever, and whatever their age; prune is for the old ones. Not those to whose result a marker points, nor those of
    a batch that has not ended. A batch that lost a failed job so does not tell of its success.
    """

    name = "delete"
    label = _("Delete")
    permission = "delete_job"
    participle = _("deleted")
    deletes = True
    warns = _("It is gone for ever, with its history.")
    states = meant = ENDED
    otherwise = _("is %(state)s: nothing to delete")

    def change(self, key: uuid.UUID, using: str, state: str) -> bool:
        _refuse_needed(key, using)
        return prune.delete([key], using) == 1

    def rehearse(self, job: Job) -> None:
        _refuse_needed(job.pk, str(job._state.db))

    def note(self, key: uuid.UUID, using: str) -> None:
        """The history is deleted with the job: the log keeps what was done."""
        about = {"action": "deleted", "job": str(key), "by": self.who, "why": self.why}
        logger.info("the job %s was deleted by %s: %s", key, self.who or "somebody", self.why or "-", extra=about)


def _refuse_needed(job_id: uuid.UUID, using: str) -> None:
    if why := needed_for(job_id, using):
        raise Refused(why)


def needed_for(job_id: uuid.UUID, using: str) -> str:
    """Why an ended job is still needed, in the reader's language; empty if it may be deleted."""
    if Marker.objects.using(using).filter(job=job_id).exists():
        return gettext("a marker points at it, so that its result is replayed; prune deletes both when it expires")
    late = Job.objects.using(using).filter(finished_at__gt=now_plus(-ADOPTED_STAYS))
    if late.filter(pk=job_id, made_at__isnull=False).exists():
        return gettext("its message was another program's, and would run again if it came again; try in a day")
    job = Job.objects.using(using).filter(pk=job_id)
    return next((str(why) for keep, why in extensions.through("needed") if job.filter(keep(using)).exists()), "")


def check_known(app: Celery, queue: str) -> None:
    """``ValueError``: the app knows no such queue in which jobs can wait, and may not create one."""
    try:
        entity = app.amqp.queues[queue]
    except KeyError:
        says = gettext("the app knows no queue %(queue)r; known are: %(known)s")
        raise ValueError(says % {"queue": queue, "known": ", ".join(sorted(app.amqp.queues))}) from None
    if isinstance(entity, Broadcast):
        raise ValueError(gettext("%(queue)r is a broadcast: each of its workers would run the job") % {"queue": queue})


OPERATIONS.update({each.name: each for each in (Kill(), Move(), Prioritize(), Delete())})
