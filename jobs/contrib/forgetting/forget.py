"""Delete what jobs keep of a tag: jobs with their history, markers, external calls, events and progress.

The jobs of a tag are those that have it, those that their bodies called, and those of the handlers of their events. All
of that is deleted, or nothing: then a job still runs, or no person has settled an external call.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils.translation import gettext

from jobs import extensions
from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.contrib.operations.actions import OPERATIONS
from jobs.contrib.pruning import prune
from jobs.contrib.redaction.display import shown
from jobs.contrib.results.store import Store
from jobs.models import ENDED, LIVE, Action, Job, Marker


class GoesOn(Exception):
    """Some of the jobs are no longer ended: a person or a program let them run again."""

    def __init__(self, left: dict[str, str]) -> None:
        self.left = left


class Forgotten(NamedTuple):
    """How much of each kind was, or would be, deleted."""

    jobs: int
    markers: int
    effects: int
    events: int
    #: What prevents the deletion: the id of a job, or the number of a call, and a sentence that says why.
    left: dict[str, str]


def forget(tags: Mapping[str, Any], by: str = "", reason: str = "", dry_run: bool = False) -> Forgotten:
    """Delete all that jobs keep of these tags. What waits is cancelled, and what runs is asked to end.

    If a job still runs, or the outcome of an external call is unknown, nothing is deleted: try again when that is over.
    """
    levels = _families(tags)
    if not dry_run:
        cancel = OPERATIONS["cancel"].told("", by, reason)
        for key in (key for keys, alias in levels for key in _live(keys, alias)):
            cancel.attempt(key)
        # The jobs that a body called before it ended belong to the tag as well.
        levels = _families(tags)
    left: dict[str, str] = {}
    for keys, alias in levels:
        left |= _in_the_way(keys, alias, dry_run)
    counts = [_count(keys, alias) for keys, alias in levels]
    jobs, markers, effects, events = (sum(column) for column in zip(*counts, strict=True)) if counts else (0,) * 4
    if not dry_run and not left:
        jobs = 0
        # The deepest level first: if this process is killed, the levels above still lead to what is left.
        for part, alias in ((part, alias) for keys, alias in reversed(levels) for part in _parts(keys)):
            try:
                jobs += _delete(part, alias)
            except GoesOn as exc:
                return Forgotten(jobs, markers, effects, events, exc.left)
        about = {"action": "forgotten", "by": by, "why": reason, "jobs": jobs}
        logger.info("what jobs kept of a tag was deleted by %s: %s", by or "somebody", reason or "-", extra=about)
    return Forgotten(jobs, markers, effects, events, left)


def _families(tags: Mapping[str, Any]) -> list[tuple[list[uuid.UUID], str]]:
    """The ids of the jobs, and their database, level by level: the first level has the tags; the jobs of one level
    called those of the next, in whatever database these are."""
    found, seen = list[tuple[list[uuid.UUID], str]](), set[uuid.UUID]()
    level = {alias: _ids(alias, tags__have=tags) for alias in conf().DATABASES}
    while any(level.values()):
        callers = list[uuid.UUID]()
        for alias, keys in level.items():
            seen.update(keys)
            found.append((keys, alias))
            callers += keys + [event.uuid for events in _events(keys, alias) for event in events.only("uuid")]
        children = {alias: [_ids(alias, parent_id__in=part) for part in _parts(callers)] for alias in level}
        level = {alias: [key for part in parts for key in part if key not in seen] for alias, parts in children.items()}
    return found


def _ids(using: str, **which: Any) -> list[uuid.UUID]:
    return list(Job.objects.using(using).filter(**which).values_list("pk", flat=True))


def _parts(keys: Sequence[uuid.UUID]) -> Iterator[Sequence[uuid.UUID]]:
    size = conf().BATCH
    return (keys[start : start + size] for start in range(0, len(keys), size))


def _events(keys: Sequence[uuid.UUID], using: str) -> Iterator[QuerySet[Any]]:
    """The events that these jobs published; nothing where the extension for events is not installed."""
    if "jobs.events" in extensions.present():
        from jobs.events.models import Event

        for part in _parts(keys):
            yield Event.objects.using(using).filter(job__in=part)


def _calls(keys: Sequence[uuid.UUID], using: str) -> Iterator[QuerySet[Any]]:
    """The external calls of these jobs; nothing where that extension is not installed."""
    if "jobs.contrib.effects" in extensions.present():
        from jobs.contrib.effects.models import Effect

        for part in _parts(keys):
            yield Effect.objects.using(using).filter(job__in=part)


def _chords(jobs: Sequence[str], using: str) -> QuerySet[Any] | None:
    """The chords that keep a result of these jobs, as Celery knows them; None where there are none."""
    if "jobs.contrib.canvas" not in extensions.present():
        return None
    from jobs.contrib.canvas.models import Chord, ChordPart

    parts = ChordPart.objects.filter(task_id__in=jobs)
    return Chord.objects.using(using).filter(pk__in=parts.values("chord"))


def _live(keys: Sequence[uuid.UUID], using: str) -> list[uuid.UUID]:
    live = Job.objects.using(using).filter(state__in=LIVE).values_list("pk", flat=True)
    return [key for part in _parts(keys) for key in live.filter(pk__in=part)]


def _in_the_way(keys: Sequence[uuid.UUID], using: str, dry_run: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in _parts(keys):
        jobs = Job.objects.using(using).filter(pk__in=part)
        # A dry run cancels nothing. The real run would cancel waiting jobs, so only running ones are in the way.
        for job in jobs.filter(state__in=["running"] if dry_run else LIVE):
            found[str(job.pk)] = gettext("has not ended: it was asked to, try again when it has")
        waiting = _chords([job.task_id for job in jobs.only("pk", "options")], using)
        for chord in () if waiting is None else waiting.filter(size__gt=F("done") + F("failed")):
            found[chord.pk] = gettext("it is a chord that has not ended, and has results of these jobs: try again then")
        for keep, why in extensions.through("needed"):
            if (needed := keep(using)) is not None:
                found |= {str(job.pk): str(why) for job in jobs.filter(needed, state__in=ENDED)}
    for calls in _calls(keys, using):
        for call in calls.exclude(state="sent"):
            says = gettext("nobody knows whether this call happened: settle it with manage.py jobs effects %s")
            maker = Job.objects.using(using).get(pk=call.job)
            found[shown(maker).text("key", str(call))] = says % call.pk
    for events in _events(keys, using):
        from jobs.events.models import UNSENT

        # Also those that other services have not got yet, such as the one that tells them to forget.
        for event in events.filter(Q(relayed_at=None) | UNSENT):
            found[str(event.uuid)] = gettext("the event is not handed on yet: try again in a moment")
    return found


def _count(keys: Sequence[uuid.UUID], using: str) -> tuple[int, int, int, int]:
    parts = list(_parts(keys))
    markers = sum(Marker.objects.using(using).filter(job__in=part).count() for part in parts)
    effects = sum(calls.count() for calls in _calls(keys, using))
    return len(keys), markers, effects, sum(events.count() for events in _events(keys, using))


def _delete(keys: Sequence[uuid.UUID], using: str) -> int:
    """Delete a part of the jobs, and what belongs to them. If it raises :class:`GoesOn`, nothing is deleted.

    Race: another process lets one of them run again, which needs its markers and calls. So the rows are deleted first,
    and everything in one transaction.
    """
    told = Store()
    try:
        ids = [job.task_id for job in Job.objects.using(using).filter(pk__in=keys).only("pk", "options")]
        with transaction.atomic(using=using):
            done = prune.delete(keys, using)
            if left := list(Job.objects.using(using).filter(pk__in=keys).values_list("pk", flat=True)):
                raise GoesOn(
                    {str(key): gettext("has not ended: it was asked to, try again when it has") for key in left}
                )
            for events in _events(keys, using):
                Action.objects.using(using).filter(job__in=[event.uuid for event in events])._raw_delete(using)
                events._raw_delete(using)
            Marker.objects.using(using).filter(job__in=keys)._raw_delete(using)
            if (chords := _chords(ids, using)) is not None:
                # Failed chords go too: if a person runs their parts again, no body is called that lacks a result.
                chords.delete()
            for calls in _calls(keys, using):
                calls._raw_delete(using)
        for key in ids:
            # The job's own report of its progress.
            told.delete(key)
    finally:
        told.close()
    return done
