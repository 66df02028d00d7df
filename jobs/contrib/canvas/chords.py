"""Chords, counted in rows: the body is called in the commit of the part that ends last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from celery import Celery, states
from celery.canvas import Signature, _chain, chord, group, maybe_signature
from celery.exceptions import ChordError
from celery.result import GroupResult
from celery.utils.functional import maybe_list
from django.db import DataError, IntegrityError, transaction
from django.db.models import F
from django.db.models.functions import Now

from jobs.calling import outbox
from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.contrib.canvas.models import Chord, ChordPart
from jobs.contrib.stock_calls.sending import calls_are_rows
from jobs.lifecycle.transitions import now_plus
from jobs.models import Job
from jobs.models.values import decoded, jsonable, parse_uuid


def apply_chord(app: Celery, header_result_args: Any, body: Any, **kwargs: Any) -> None:
    """Write down the parts of a chord, in the caller's transaction, before any of them is called."""
    header, using = app.GroupResult(*header_result_args), outbox.alias_of()
    parts = [ChordPart(chord_id=header.id, task_id=key, place=place) for key, place in _leaves(header)]
    # A frozen chord that is called again begins anew.
    Chord.objects.using(using).filter(pk=header.id).delete()
    Chord.objects.using(using).create(id=header.id, size=len(parts))
    ChordPart.objects.using(using).bulk_create(parts, batch_size=1000)


def add_to_chord(app: Celery, chord_id: str, result: Any) -> None:
    """One more part, at the end (``Task.add_to_chord``)."""
    using = outbox.alias_of()
    chord = Chord.objects.using(using).select_for_update().get(pk=chord_id)
    ChordPart.objects.using(using).create(chord=chord, task_id=result.id, place=[chord.size])
    chord.size += 1
    chord.save(using=using, update_fields=["size"])


def on_chord_part_return(app: Celery, request: Any, state: str, result: Any, **kwargs: Any) -> None:
    """Called when a part that is not a job has ended, or when a part has failed."""
    within = outbox.following.get()
    error = repr(result) if state in states.PROPAGATE_STATES else ""
    value = None if error else jsonable(result, "the result")
    for alias in dict.fromkeys([*filter(None, [within]), *conf().DATABASES]):
        with calls_are_rows(alias):
            if count(app, request.chord, request.group, request.id, alias, value, error):
                return
    logger.warning("the chord %s of %s is not known here", request.group, request.id, extra={"action": "no_chord"})


def _leaves(header: Any, place: tuple[int, ...] = ()) -> Iterator[tuple[str, list[int]]]:
    for index, result in enumerate(header.results):
        if isinstance(result, GroupResult):
            yield from _leaves(result, (*place, index))
        else:
            yield result.id, [*place, index]


def count(
    app: Celery, body: Mapping[str, Any], chord_id: str, task_id: str, using: str, result: Any = None, error: str = ""
) -> bool:
    """Count a part that has ended. The last part calls the body or, if any part has failed, the errbacks of the body.

    A part that failed and was retried by a person counts with its new outcome, so the body may still be called.
    The rows of the part and of the chord are locked until the commit, so two last parts cannot miss each other.

    Parameters:
        result: of the part, as JSON data.
        error: why the part failed; empty if it did not.

    Returns:
        False: the chord is not known here.
    """
    chords = Chord.objects.using(using).filter(pk=chord_id)
    parts = ChordPart.objects.using(using).filter(chord=chord_id)
    own = parts.filter(task_id=task_id)
    said = {"ok": not error, "result": result, "error": error}
    # Most parts end once. One that failed may have been run again.
    if own.filter(ok=None).update(**said):
        chords.update(failed=F("failed") + 1, made_at=Now()) if error else chords.update(done=F("done") + 1)
    elif not error and own.filter(ok=False).update(**said):
        chords.update(failed=F("failed") - 1, done=F("done") + 1)
        if chords.filter(failed__gt=0).exists():
            return True
    else:
        return chords.exists()
    [(size, done, failed)] = chords.values_list("size", "done", "failed")
    if done + failed < size:
        return True
    callback = maybe_signature(body, app=app)
    if failed:
        task_id, why = parts.filter(ok=False).values_list("task_id", "error").latest("id")
        _fail(app, callback, f"Dependency {task_id} raised {why}", using)
        return True
    results = _nested(parts.values_list("place", "result"))
    parts.delete()
    chords.delete()
    try:
        with transaction.atomic(using=using):
            if callback.task == "celery.accumulate":
                # A group replaces a job: Celery has the results collected by this task of its own, which has no row.
                key: Any = parse_uuid(str(callback.options.get("task_id")))
                replaced = Job.objects.using(using).filter(pk=key, options__replaced=True)
                replaced.update(result=jsonable(results, "the results"))
            callback.apply_async((results,))
    except (TypeError, ValueError, LookupError, IntegrityError, DataError) as exc:
        logger.exception("the body of the chord %s cannot be called", chord_id, extra={"action": "chord_failed"})
        _fail(app, callback, f"Callback error: {exc!r}", using)
    return True


def _fail(app: Celery, body: Signature, says: str, using: str) -> None:
    while isinstance(body, chord):
        # The caller waits for the end of its body, which has the errbacks: Celery looks at the chord itself.
        rest, body = body.options.get("chain"), body.body
        body.options.setdefault("chain", rest)
    if isinstance(body, _chain):
        # Celery calls the errbacks of the whole chain, but not those of the step that it does not come to.
        for errback in maybe_list(body.tasks[0].options.get("link_error")) or ():
            body.link_error(errback)
    try:
        raise ChordError(says)
    except ChordError as exc:
        # Celery's method takes the traceback of the exception that is being handled.
        app.backend.chord_error_from_stack(body, exc)
    for last in ends_of(body):
        # The body would have been a part of another chord.
        if (outer := last.options.get("chord")) is not None:
            count(app, outer, last.options["group_id"], last.options["task_id"], using, error=says)


def ends_of(body: Signature) -> Iterator[Signature]:
    """The tasks with which a body ends."""
    if isinstance(body, chord):
        yield from ends_of(body.body)
    elif isinstance(body, group):
        for each in body.tasks:
            yield from ends_of(each)
    elif isinstance(body, _chain):
        yield from ends_of(body.tasks[-1])
    else:
        yield body


def _nested(rows: Any) -> list[Any]:
    """The results as the header was written: a group in it is a list."""
    nested: list[Any] = []
    for place, result in sorted(rows):
        node = nested
        for index in place[:-1]:
            _fill(node, index + 1)
            node = node[index]
        _fill(node, place[-1])
        node.append(decoded(result))
    return nested


def _fill(node: list[Any], size: int) -> None:
    """A group without tasks has no part, and no result."""
    node += [[] for _ in range(size - len(node))]


def prune(using: str) -> None:
    """Delete chords that have failed, when their parts are too old to be retried."""
    if (age := conf().RETENTION_FAILED) is not None:
        over = Chord.objects.using(using).filter(made_at__lt=now_plus(-age), size__lte=F("done") + F("failed"))
        if keys := list(over.values_list("pk", flat=True)[: conf().BATCH]):
            Chord.objects.using(using).filter(pk__in=keys).delete()
