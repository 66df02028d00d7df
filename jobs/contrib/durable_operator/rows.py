"""Durable tasks, for people: the steps of a job, what jobs wait for, and the signals that came."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from django.db.models.functions import Now
from django.utils.translation import gettext, ngettext

from jobs.conf import conf
from jobs.contrib.durable.history import AGAIN, CHILDREN, SLEEPS
from jobs.contrib.durable.models import Step
from jobs.contrib.durable.signals import SIGNAL
from jobs.contrib.durable.store import awaiting_any
from jobs.contrib.inspection.counts import MOST, age_of, seconds_of
from jobs.contrib.inspection.times import duration
from jobs.contrib.inspection.view import SHOWN, Reason, View
from jobs.contrib.redaction.display import BLANK, shown
from jobs.lifecycle.transitions import due_at
from jobs.models import ENDED, LIVE, UNSUCCESSFUL, Job, State
from jobs.models.values import as_uuid

_KIND, _STATE = Step.Kind, Step.State

#: The state of a wait whose job has gone on, although its row still says waiting.
OVER = "over"


def steps(job: Job, most: int) -> list[dict[str, Any]]:
    """The last steps of a job, in their order, as people may see them."""
    rows = Step.objects.using(job._state.db).filter(job=job.pk).annotate(read_at=Now())
    found: list[Any] = list(rows.order_by("-pk")[:most])
    seen = shown(job)
    return [_told(row, later, job, seen) for row, later in zip(found, [None, *found], strict=False)][::-1]


def _told(row: Any, later: Any, job: Job, seen: Any) -> dict[str, Any]:
    state, done_at = row.state, row.done_at
    # A sleep is never written again, and a deploy may leave out what a job waited for.
    has_gone_on = later is not None or job.state in ENDED or (row.kind == _KIND.SLEEP and job.state != State.SCHEDULED)
    if state == _STATE.WAITING and has_gone_on:
        state = OVER
        # The step behind it may have begun again since.
        end = later.made_at if later is not None else job.finished_at
        done_at = min(row.until or end or row.read_at, end or row.read_at)
    waits, error = state == _STATE.WAITING, seen.error(row.error)
    entry = error if isinstance(error, dict) else {"type": "?", "message": error}
    names = {_KIND.STEP: "result", _KIND.WAIT: "payload"} if row.state == _STATE.DONE else {}
    return {
        "name": seen.text("key", row.name),
        "kind": row.kind,
        "state": str(state),
        "begun_at": row.made_at,
        "done_at": done_at,
        "until": row.until if waits else None,
        "seconds": seconds_of((done_at or row.read_at) - row.made_at),
        "failures": row.failures,
        "signal": seen.text("key", row.key) if waits and row.kind == _KIND.WAIT else None,
        "value": seen.value(names[row.kind], row.result) if row.kind in names else None,
        "error": error,
        "fault": f"{entry.get('type')}: {str(entry.get('message'))[:500]}" if error else "",
        "children": _children(row, job) if row.kind == _KIND.GATHER else [],
    }


def _children(row: Any, job: Job) -> list[Any]:
    children = Job.objects.using(job._state.db).filter(batch=as_uuid(row.key)).order_by("pk")
    return [*children.values("id", "task", "state")[: SHOWN + 1]]


# What jobs wait for


def key_of(job: Job) -> str | None:
    """The signal that a job waits for."""
    waits = job.state == State.SCHEDULED and str(job.waits_for).startswith(SIGNAL)
    return str(job.waits_for).removeprefix(SIGNAL) if waits else None


def waits(view: View) -> Iterator[Reason]:
    job, seen = view.job, view.seen
    kind, _, what = str(job.waits_for or "").partition(":")
    if job.state != State.SCHEDULED or view.is_due or f"{kind}:" not in (SIGNAL, SLEEPS, CHILDREN, AGAIN):
        return
    row = Step.objects.using(view.using).filter(job=job.pk, state=_STATE.WAITING).order_by("-pk").first()
    since = job.started_at if row is None else row.made_at
    words: dict[str, Any] = {"since": view.ago(since), "until": duration(-view.since(job.run_at))}
    evidence: dict[str, Any] = {"seconds": view.since(since), "run_at": due_at(job)}
    if f"{kind}:" == CHILDREN:
        yield _waits_for_children(view, what, words, evidence)
        return
    what = seen.text("key", what)
    if f"{kind}:" == SIGNAL:
        says = gettext("It has been waiting for the signal %(key)s for %(since)s.")
        if due_at(job):
            says = gettext("It has been waiting for the signal %(key)s for %(since)s, and gives up in %(until)s.")
        where = f" --database {view.using}" if view.using != conf().DATABASES[0] else ""
        cure = gettext("This lets it go on: manage.py jobs signal %s") % (shlex.quote(what) + where)
        yield Reason("waits_for_signal", says, cure, words, key=what, **evidence)
    elif f"{kind}:" == SLEEPS:
        says = gettext("It sleeps (%(step)s), and goes on in %(until)s.")
        cure = gettext("Without waiting: manage.py jobs run %(id)s") % {"id": job.pk}
        yield Reason("sleeps", says, cure, words, step=what, **evidence)
    else:
        says = ngettext(
            "Its step %(step)s has failed once (%(error)s), and is tried again in %(until)s.",
            "Its step %(step)s has failed %(failures)s times (%(error)s), and is tried again in %(until)s.",
            failures := row.failures if row else 1,
        )
        cure = gettext("If the cause is gone: manage.py jobs run %(id)s") % {"id": job.pk}
        error = "{type}: {message}".format(**view.error) if view.error else "?"
        yield Reason("step_retry", says, cure, words, step=what, error=error, failures=failures, **evidence)


def _waits_for_children(view: View, batch: str, words: Any, evidence: dict[str, Any]) -> Reason:
    children = Job.objects.using(view.using).filter(batch=as_uuid(batch))
    live, number = children.filter(state__in=LIVE).order_by("pk"), children.count()
    if (one := live.values_list("pk", flat=True).first()) is None:
        says = gettext("Its children have ended (%(number)s), and it goes on in a moment.")
        return Reason("waits_for_children", says, "", words, number=number, left=0, **evidence)
    says = gettext("It has been waiting for %(left)s of its %(number)s children for %(since)s. One of them: %(job)s.")
    evidence |= {"number": number, "left": live.count(), "job": one}
    return Reason("waits_for_children", says, f"manage.py jobs why {one}", words, **evidence)


class _Cause(Reason):
    is_cause = True


def reasons(view: View) -> Iterator[Reason]:
    """What a person needs to know of a job that ended without success, before a retry."""
    job, jobs = view.job, Job.objects.using(view.using)
    if job.state == State.CANCELLED:
        if (undo := jobs.filter(parent_id=job.pk, task="jobs.compensate").order_by("-pk").first()) is not None:
            says = gettext("What its steps did is taken back by the job %(job)s, which is %(state)s.")
            words = {"job": undo.pk, "state": undo.get_state_display()}
            yield Reason("taken_back", says, f"manage.py jobs why {undo.pk}", words, job=undo.pk, state=undo.state)
    elif job.state == State.FAILED:
        last = Step.objects.using(view.using).filter(job=job.pk).order_by("-pk").first()
        if last is None or (last.kind, last.state) != (_KIND.GATHER, _STATE.FAILED):
            return
        own, of_child = (
            [(error or {}).get(part) for part in ("type", "message")] for error in (job.own_error, last.error)
        )
        if own != of_child:
            # The body has caught that, and failed for something else.
            return
        child = jobs.filter(batch=as_uuid(last.key), state__in=UNSUCCESSFUL).order_by("pk").first()
        if child is not None:
            says = gettext("It failed with its child %(job)s: that is retried first, and then this one.")
            cure = gettext("manage.py jobs retry %(child)s; when it has succeeded: manage.py jobs retry %(job)s")
            yield _Cause("child_failed", says, cure % {"child": child.pk, "job": job.pk}, job=child.pk)


# All that wait, for metrics

_PATTERNS = 20  #: At most this many patterns of keys are told apart; all others are "*".


def metrics() -> Iterator[tuple[str, str, list[str], Any]]:
    look, labels = cache(suspended), ["kind", "key"]

    def part(place: int) -> Any:
        return lambda found: [(label, each[place]) for label, each in look().items()]

    says = f"Durable tasks that wait, {MOST} of each kind are counted; of a signal: the first part of its key."
    yield "jobs_suspended", says, labels, part(0)
    yield "jobs_suspended_oldest_seconds", "For how long the first of them has waited.", labels, part(1)


def suspended() -> dict[tuple[str, str], tuple[int, float]]:
    """By kind and pattern of the key: how many jobs wait, and seconds since the first of their last runs.

    Of each kind the first :data:`MOST` are looked at, in the order of their keys.
    """
    ages: dict[tuple[str, str], list[float]] = {}
    kinds = {"signal": SIGNAL, "sleep": SLEEPS, "children": CHILDREN, "retry": AGAIN}
    for alias in conf().DATABASES:
        for kind, prefix in kinds.items():
            rows = awaiting_any(prefix, alias).annotate(age=age_of("started_at")).values_list("waits_for", "age")[:MOST]
            # The rest of a key is about one order or one person. A key without a colon may be just that.
            parts = [(str(waits_for).removeprefix(prefix).partition(":"), age) for waits_for, age in rows]
            told = kind == "signal"
            read = [((f"{head}:*" if colon else "*") if told else "", age) for (head, colon, _), age in parts]
            kept = dict(Counter(pattern for pattern, _ in read).most_common(_PATTERNS))
            for pattern, age in read:
                label = kind, pattern if pattern in kept else "*"
                ages.setdefault(label, []).append(seconds_of(age) if age else 0.0)
    return {label: (len(each), max(each)) for label, each in ages.items()}


# Signals


def veil(rows: Iterable[Any]) -> None:
    """Redact signals that are shown. They must not be saved after this."""
    found = list(rows)
    takers: dict[Any, Job] = {}
    if conf().REDACT is not None and found:
        jobs = Job.objects.using(found[0]._state.db).only("task", "args", "kwargs")
        takers = jobs.in_bulk([row.taken_by for row in found if row.taken_by])
    for row in found:
        seen = shown(takers.get(row.taken_by) or Job.of({"task": ""}))
        if conf().REDACT is None or row.taken_by in takers:
            row.payload = seen.value("payload", row.payload)
        elif row.payload is not None:
            # The task whose rules redact it is not known yet.
            row.payload = BLANK
        row.key = seen.text("key", row.key)
