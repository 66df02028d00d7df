"""Pause, resume and run an entry of the schedule, for every worker at once."""

import uuid

from django.db import DataError, IntegrityError, transaction
from django.db.models.functions import Now
from django.utils.translation import gettext

from jobs.conf import celery_app, import_tasks
from jobs.contrib.operations.notes import note
from jobs.contrib.schedules import entries
from jobs.contrib.schedules.models import Schedule
from jobs.errors import UniqueBusy, UniqueTaken
from jobs.models.values import scrub
from jobs.store import databases


def pause(name: str, by: str = "", reason: str = "") -> bool:
    """Let its ticks pass without jobs. False: the entry is paused already, or there is no entry of this name."""
    says = {"paused_by": scrub(by, 150), "reason": scrub(reason, 1000)}
    found = databases.each(Schedule.objects.filter(pk=name, paused_at=None))
    return sum(rows.update(paused_at=Now(), **says) for rows in found) > 0


def resume(name: str) -> bool:
    """Go on with the next tick. Ticks during the pause do not count as missed. False: the entry is not paused."""
    done = 0
    for rows in databases.each(Schedule.objects.filter(pk=name, paused_at__isnull=False)):
        with transaction.atomic(using=rows.db):
            # A worker that has the entry computes the next tick.
            rows.filter(next_tick__lte=Now()).update(definition="")
            done += rows.update(paused_at=None, paused_by="", reason="")
    return done > 0


def run(name: str, by: str = "", why: str = "") -> uuid.UUID | None:
    """Make a job of the entry now, also if no tick is due; returns the job's id. The entry's ticks do not change.

    Raises:
        LookupError: this process knows no such entry; the message is in the reader's language.
        TypeError, ValueError: the call cannot be made.
    """
    entry = None
    if (app := celery_app()) is not None:
        import_tasks(app)
        entry = entries.gather(app)[0].get(name)
    if entry is None:
        raise LookupError(gettext("The code of this process has no entry %(name)r in its schedule.") % {"name": name})
    try:
        with transaction.atomic(using=entry.using):
            job = entry.call(None)
            Schedule.objects.using(entry.using).filter(pk=name).update(last_job=job, last_run=Now())
            if job is not None:
                note(job, entry.using, "run", name, by, why)
    except (DataError, IntegrityError, UniqueBusy, UniqueTaken) as exc:
        raise ValueError(str(exc)) from exc
    return job
