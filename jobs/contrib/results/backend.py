"""Celery's result backend over the jobs' rows: ``result_backend = "jobs.backend:Backend"``.

A job's row has all that a result backend keeps of a task. So a run writes nothing here, and callers also see an end
that was decided outside of the body. Only what has no row is stored (``store.py``).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import celery.exceptions
from celery import current_app, states
from celery.backends.base import BaseBackend
from celery.contrib.abortable import ABORTED
from celery.result import assert_will_not_block, result_from_tuple
from django.db import InterfaceError, OperationalError

from jobs import extensions
from jobs.conf import conf
from jobs.contrib.results import store
from jobs.contrib.results.endings import exception_of
from jobs.contrib.results.listener import ResultListener
from jobs.contrib.results.said import leave
from jobs.contrib.results.store import Store
from jobs.models import ENDED, LIVE, WAITING, Job, State
from jobs.models.values import as_uuid, decoded
from jobs.store import databases

#: Seconds between the first two looks of a waiting caller, and the growth factor of each later pause.
FIRST_PAUSE, GROWTH = 0.005, 1.5
#: A caller whose pauses are longer (seconds) also listens for notifications.
LISTENS = 0.03

_STATES: dict[str, str] = {
    State.RUNNING: states.STARTED,
    State.SUCCEEDED: states.SUCCESS,
    State.FAILED: states.FAILURE,
    State.CANCELLED: states.REVOKED,
}

#: The states that ``update_state`` cannot give a job: its row decides them.
_DECIDED = {*states.READY_STATES, states.RETRY, states.PENDING}


def _of_chords(name: str) -> Callable[..., None]:
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        for chords in extensions.through("chords"):
            getattr(chords, name)(self.app, *args, **kwargs)

    return call


class Backend(BaseBackend):
    """Results of jobs are their rows, and are kept as long; ``result_expires`` is for results of other tasks."""

    #: A run tells this backend nothing: it reads the rows (``jobs.execution.tracer``).
    reads_rows = True
    supports_native_join = True
    #: The worker prunes expired results: ``celery.backend_cleanup`` is not needed.
    supports_autoexpire = True

    def __init__(self, app: Any, **kwargs: Any) -> None:
        super().__init__(app, **{**kwargs, "serializer": "json", "accept": ["json"]})
        self._store = Store()

    # Writing

    def store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        """What Celery stores of a job is in its row already. Only ``update_state`` is stored, for this run."""
        job = None
        if run := getattr(request, "jobs_run", None):
            job, run.tells_backend = run.job, True
        elif getattr(request, "id", None) != task_id:
            # The caller may be a thread of the job's body. A request with this id is a stock task's, which has no row.
            job = self._jobs([task_id]).get(as_uuid(task_id))
        if job is not None:
            # A job that waits can be told to abort: its next run hears of it.
            is_next = job.state in WAITING and state == ABORTED
            if state in _DECIDED or not (is_next or job.state == State.RUNNING):
                return result
            kwargs |= {"lease": job.lease + is_next, "keep_open": bool(run), "slot": run.slot if run else None}
        return super().store_result(task_id, result, state, traceback, request, **kwargs)

    def _store_result(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: Any = None,
        request: Any = None,
        slot: Any = None,
        **kwargs: Any,
    ) -> None:
        meta = self.encode({**self._get_result_meta(result, state, traceback, request), "task_id": task_id})
        if slot is None or not leave(slot, store.packed(task_id, meta, self.expires, kwargs["lease"])):
            self._store.write(task_id, meta, self.expires, **kwargs)

    def process_cleanup(self) -> None:
        self._store.close()

    def _forget(self, task_id: str) -> None:
        self._store.delete(task_id)

    def _save_group(self, group_id: str, result: Any) -> Any:
        self._store.write(f"group:{group_id}", self.encode({"result": result.as_tuple()}), self.expires)
        return result

    def _restore_group(self, group_id: str) -> dict[str, Any] | None:
        key = f"group:{group_id}"
        found = self._store.read([key]).get(key)
        return found and {"result": result_from_tuple(self.decode(found[0])["result"], self.app)}

    def _delete_group(self, group_id: str) -> None:
        self._store.delete(f"group:{group_id}")

    #: The canvas counts the parts of a chord (its ``chords.py``).
    apply_chord, add_to_chord, on_chord_part_return = map(
        _of_chords, ("apply_chord", "add_to_chord", "on_chord_part_return")
    )

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Nothing to do: the call has said it."""

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        """With ``result_backend_always_retry``."""
        return isinstance(exc, OperationalError | InterfaceError)

    # Reading

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        job = self._jobs([task_id]).get(as_uuid(task_id))
        if job is not None and job.state != State.RUNNING:
            return self._metas([job])[job.pk]
        # What an earlier run has stored does not count. Neither does what a deleted job has left.
        stored = self._stored([task_id], job.lease if job else None).get(task_id)
        if stored is None and job is not None:
            return self._metas([job])[job.pk]
        return stored or {"task_id": task_id, "status": states.PENDING, "result": None}

    def task_result_exists(self, task_id: str) -> bool:
        """True also while the job waits: its row exists."""
        return bool(self._jobs([task_id]) or self._stored([task_id]))

    def wait_for(self, task_id: str, timeout: float | None = None, interval: float = 0.5, **kwargs: Any) -> Any:
        return next(self.get_many([task_id], timeout, interval, **kwargs))[1]

    def get_many(
        self,
        task_ids: Iterable[str],
        timeout: float | None = None,
        interval: float | None = 0.5,
        no_ack: bool = True,
        on_message: Any = None,
        on_interval: Any = None,
        max_iterations: int | None = None,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """What became of the tasks, each as soon as it is over. ``interval`` is the longest pause between two looks."""
        self._ensure_not_eager()
        ids, looks, pause, longest = set(task_ids), 0, FIRST_PAUSE, 0.5 if interval is None else interval
        deadline = None if timeout is None else time.monotonic() + timeout
        with ResultListener(databases.home()) as listener:
            while ids:
                for task_id, meta in self._over(ids).items():
                    ids.remove(task_id)
                    if on_message is not None:
                        on_message(meta)
                    yield task_id, meta
                looks += 1
                if not ids or (max_iterations and looks >= max_iterations):
                    return
                if on_interval:
                    on_interval()
                left = longest if deadline is None else deadline - time.monotonic()
                if left <= 0 and deadline is not None:
                    raise celery.exceptions.TimeoutError("The operation timed out.")
                # A long wait also listens; a short one is over before a connection is open.
                sleep = partial(listener.sleep, ids=ids) if pause > LISTENS else self._sleep
                sleep(max(0.0, min(pause, longest, left)))
                pause *= GROWTH

    def _over(self, task_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The tasks that are over. Arguments and results are read only for those, so a look costs little."""
        keys = {task_id: as_uuid(task_id) for task_id in task_ids}
        found: dict[Any, str] = {}
        for alias, some in self._places(keys.values()):
            rows = Job.objects.using(alias).filter(pk__in=some).values_list("pk", "state")
            found |= dict(databases.patiently(alias, partial(list, rows)))
        jobs = self._jobs([task_id for task_id, key in keys.items() if found.get(key) in ENDED])
        # Race: a person may have retried a failed job since the first query.
        metas = self._metas(job for job in jobs.values() if job.state in ENDED)
        over = {id_: metas[jobs[key].pk] for id_, key in keys.items() if key in jobs and jobs[key].pk in metas}
        stored = self._stored([id_ for id_, key in keys.items() if key not in jobs and found.get(key) not in LIVE])
        return over | {key: meta for key, meta in stored.items() if meta["status"] in states.READY_STATES}

    def _jobs(self, task_ids: Iterable[str]) -> dict[uuid.UUID | None, Job]:
        found: dict[uuid.UUID | None, Job] = {}
        for alias, some in self._places(map(as_uuid, task_ids)):
            # The row of its node may be gone: the key alone would ask for it.
            here = Job.objects.using(alias).select_related("node")
            jobs: list[Job] = databases.patiently(alias, partial(list, here.filter(pk__in=some)))
            found |= {job.pk: job for job in jobs}
            # A task that replaced another goes on under its id.
            replaced = [job for job in jobs if isinstance(job.options, dict) and job.options.get("replaced")]
            for job in replaced:
                if job.replay_of is None:
                    # The replacement has no row yet. If a step before it failed, ``fail_chain`` has stored that.
                    del found[job.pk]
            places = {job.replay_of: job.pk for job in replaced if job.replay_of}
            if places:
                found |= {places[job.pk]: job for job in here.filter(pk__in=places)}
        return found

    @staticmethod
    def _places(keys: Iterable[Any]) -> Iterator[tuple[str, list[Any]]]:
        """Each database that may have the jobs, with as many of the keys as one statement takes."""
        wanted = list(keys)
        for alias in conf().DATABASES:
            for start in range(0, len(wanted), conf().BATCH):
                yield alias, wanted[start : start + conf().BATCH]

    def _stored(self, task_ids: Iterable[str], lease: int | None = None) -> dict[str, dict[str, Any]]:
        wanted = list(task_ids)
        found = self._store.read(wanted) if wanted else {}
        return {key: self.decode_result(meta) for key, (meta, of) in found.items() if of == lease}

    def _metas(self, jobs: Iterable[Job]) -> dict[Any, dict[str, Any]]:
        """What the rows say, as Celery's backends do with ``result_extended``."""
        rows = list(jobs)
        children = self._children([job.pk for job in rows if job.state in ENDED])
        return {job.pk: self._meta(job, children.get(job.pk, [])) for job in rows}

    def _meta(self, job: Job, children: list[Any]) -> dict[str, Any]:
        status = _STATES.get(job.state) or (states.RETRY if job.retries else states.PENDING)
        error = job.error if isinstance(job.error, dict) else {}
        hostname = job.node.hostname if job.node else None
        result: Any = None
        if status == states.SUCCESS:
            result = decoded(job.result)
        elif status == states.STARTED:
            result = {"hostname": hostname}
        elif status == states.REVOKED:
            result = celery.exceptions.TaskRevokedError(error.get("message", ""))
        elif error and status != states.PENDING:
            result = exception_of(error, self)
        is_raised = status in (states.FAILURE, states.RETRY)
        return {
            "task_id": job.task_id,
            "status": status,
            "result": result,
            "traceback": (is_raised and error.get("traceback")) or None,
            "children": children,
            "date_done": job.finished_at,
            "name": job.task,
            "args": decoded(job.args),
            "kwargs": decoded(job.kwargs),
            "worker": hostname,
            "retries": job.retries,
            "queue": job.queue,
            "parent_id": job.parent_id and str(job.parent_id),
            "group_id": job.options.get("group_id") if isinstance(job.options, dict) else None,
        }

    def _children(self, keys: list[Any]) -> dict[Any, list[Any]]:
        """The calls that the jobs' bodies made, as ``result_from_tuple`` takes them; those of a group together."""
        found: dict[Any, dict[Any, list[Any]]] = {}
        for alias, some in self._places(keys):
            rows = Job.objects.using(alias).filter(parent_id__in=some).order_by("options__group_index", "pk")
            calls: Any = rows.values_list("parent_id", "pk", "options__task_id", "options__group_id")
            for parent, key, task_id, group in calls:
                result = ((task_id or str(key), None), None)
                found.setdefault(parent, {}).setdefault(group or key, []).append(result)
        return {
            parent: [((group, None), made) if isinstance(group, str) else made[0] for group, made in groups.items()]
            for parent, groups in found.items()
        }


def wait(job: Job, timeout: float | None) -> Any:
    """See ``Job.wait``."""
    assert_will_not_block()
    backend = Backend(current_app._get_current_object())
    try:
        meta = backend.wait_for(str(job.pk), timeout, on_interval=lambda: job.refresh_from_db(fields=["state"]))
    except celery.exceptions.TimeoutError:
        raise TimeoutError(f"{job} is {job.state}, and not over after {timeout:g} s") from None
    job.refresh_from_db()
    if meta["status"] in states.PROPAGATE_STATES:
        raise meta["result"]
    return meta["result"]
