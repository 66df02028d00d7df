"""Why a job waits."""

import shlex
from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext, ngettext

from jobs import extensions, store
from jobs.contrib.inspection.counts import MOST, UNKNOWN, at_least, in_line, late_after, worker_command
from jobs.contrib.inspection.times import duration
from jobs.contrib.inspection.view import COUNTS, SHOWN, Reason, View
from jobs.contrib.sessions.seen import sessions
from jobs.lifecycle.transitions import PARKED
from jobs.models import Job, State
from jobs.store import identity

#: Seconds after which an open transaction is a reason: on PostgreSQL; on SQLite, where it holds the only write lock.
OLD = 60
LONG = 1


def expired(view: View) -> Iterator[Reason]:
    expires = view.job.expires_at
    if expires is not None and expires <= view.now:
        says = gettext("It expired %(ago)s ago, before a worker started it. It is cancelled instead of run.")
        cure = gettext("Enqueue it again, with a later expires=. The reasons below say what kept it.")
        yield Reason("expired", says, cure, {"ago": view.ago(expires)}, expires_at=expires)


def not_adopted(view: View) -> Iterator[Reason]:
    marks = identity.marks(view.using)
    if not marks["adopted"]:
        says = gettext(
            "The database is marked as another one (%(mark)s): a copy of it, or it was moved. Workers refuse it."
        )
        cure = gettext("If its jobs should run here: manage.py jobs adopt --dry-run")
        yield Reason("not_adopted", says, cure, {"mark": marks["marked_as"]}, **marks)


def own_time(view: View) -> Iterator[Reason]:
    job, error = view.job, view.error
    if view.is_due:
        return
    if found := [reason for waits in extensions.through("waits") for reason in waits(view)]:
        yield from found
        return
    evidence: dict[str, Any] = {"run_at": job.run_at, "seconds": -view.since(job.run_at)}
    words: dict[str, Any] = {"until": duration(-view.since(job.run_at))}
    code, says = "scheduled", gettext("It is scheduled, and runs in %(until)s.")
    cure = gettext("Without waiting: manage.py jobs run %(id)s")
    kind, since = (error or {}).get("type"), job.started_at.isoformat() if job.started_at else ""
    # The error of an earlier run is not why it waits. A worker that does not know the task writes one without a run.
    if error and (error["attempt"] == job.lease or (kind == UNKNOWN and str(error["at"]) > since)):
        evidence |= {"error": kind, "message": error["message"], "at": error["at"]}
        evidence |= {name: getattr(job, name) for name in COUNTS}
        words["error"] = f"{kind}: {error['message']}"
        if kind == UNKNOWN:
            yield from unknown_task(view)
            code, cure = "postponed", gettext("Deploy the same code to all workers.")
            says = gettext(
                "A worker that does not know its task put it behind the others. It is tried again in %(until)s."
            )
            if job.run_at == PARKED:
                says = gettext("No worker that took it knows its task. It waits for one that does, and then runs.")
                evidence = {"error": kind, "message": error["message"], "at": error["at"]}
        elif kind == "Busy":
            yield from locked(view)
            code, cure = "busy", ""
            says = gettext("What it needs is busy (%(error)s). It tries again in %(until)s, and uses no attempt.")
        elif kind == "Snooze":
            code, words["n"] = "snoozed", job.snoozes
            says = gettext("Its body asked for a later time (snooze number %(n)s). It runs in %(until)s.")
        elif job.retries and kind not in ("WorkerLostError", "NodeLost"):
            code, words["n"] = "retry", job.retries
            says = gettext("Its last run failed: %(error)s. Retry number %(n)s runs in %(until)s.")
            cure = gettext("If the cause is gone: manage.py jobs run %(id)s")
        else:
            code, says = "given_back", gettext("It was given back (%(error)s), and runs again in %(until)s.")
    yield Reason(code, says, cure % {"id": job.pk}, words, **evidence)


def paused(view: View) -> Iterator[Reason]:
    if (pause := view.pause) is not None:
        says = gettext("The queue %(queue)s has been paused for %(ago)s%(by)s%(why)s.")
        cure = f"manage.py jobs resume {shlex.quote(pause.queue)}"
        by = gettext(", by %s") % pause.by if pause.by else ""
        words = {"ago": view.ago(pause.at), "by": by, "why": f": {pause.reason}" if pause.reason else ""}
        yield Reason("queue_paused", says, cure, words, queue=pause.queue, at=pause.at, by=pause.by)


def no_worker(view: View) -> Iterator[Reason]:
    if view.consumers:
        return
    queue = view.job.queue
    others = {str(worker): worker.queues for worker in view.workers if worker.takes_jobs}
    quiet = [worker for worker in view.workers if worker.takes_jobs and not worker.queues]
    stopping = [str(worker) for worker in view.workers if worker.is_alive and not worker.takes_jobs]
    silent = [str(worker) for worker in view.workers if not worker.is_alive]
    code, says, cure = "no_worker", gettext("No worker is alive."), worker_command("-Q", queue)
    if others:
        code = "no_consumer"
        says = ngettext(
            "%(number)s worker is alive, and it does not consume the queue %(queue)s.",
            "%(number)s workers are alive, and none consumes the queue %(queue)s.",
            len(others),
        )
        if quiet:
            says = gettext("No worker takes jobs of the queue %(queue)s: %(quiet)s was told to be quiet.")
            cure = f"manage.py jobs tell resume {str(quiet[0].pk)[:8]}"
    elif stopping:
        says = gettext("No worker takes new jobs: %(stopping)s was told to stop.")
        cure = gettext("Start another: %s") % cure
    elif silent:
        says = gettext("No worker is alive: %(silent)s went silent.")
        cure = gettext("Look at its machine, or start another: %s") % cure
    words = {"number": len(others), "stopping": ", ".join(stopping), "silent": ", ".join(silent)}
    words["quiet"] = ", ".join(map(str, quiet))
    yield Reason(code, says, cure, words, queue=queue, workers=others, stopping=stopping, silent=silent)


def unknown_task(view: View) -> Iterator[Reason]:
    task, workers = view.job.task, view.consumers
    if not workers or any(task in worker.tasks for worker in workers):
        return
    is_imported = any(imports(view.job) for imports in extensions.through("imports"))
    if is_imported and (view.error or {}).get("type") != UNKNOWN:
        return
    says = ngettext(
        "The worker that consumes its queue does not know the task %(task)s.",
        "None of the %(number)s workers that consume its queue knows the task %(task)s.",
        len(workers),
    )
    cure = gettext(
        "Deploy the code that has it, and see that the worker imports it (autodiscover_tasks, imports). If it was "
        "renamed or removed: manage.py jobs cancel %(id)s"
    ) % {"id": view.job.pk}
    known_by = [str(worker) for worker in view.workers if worker.is_alive and task in worker.tasks]
    evidence = {"workers": {str(worker): worker.version for worker in workers}, "known_by": known_by}
    words = {"number": len(workers)}
    yield Reason("unknown_task", says, cure, words, task=task, **evidence, known_here=view.task is not None)


def locked(view: View) -> Iterator[Reason]:
    """Another job or process holds the lock that the job needs."""
    key, held = view.lock or ("", None)
    if held is None or held.job == view.job.pk:
        return
    holder = gettext("the job %s") % held.job if held.job else gettext("a process that is no job")
    until = "" if held.left is None else gettext(", for %s more unless it is renewed") % duration(held.left)
    says = gettext("The lock %(key)s is held by %(holder)s%(until)s. It tries again until that is free.")
    cure = f"manage.py jobs why {held.job}" if held.job else ""
    words = {"key": repr(key), "holder": holder, "until": until}
    yield Reason("lock_held", says, cure, words, lock=key, job=held.job, seconds=held.left)


def held_up(view: View, code: str, says: str, question: str, value: Any, **evidence: Any) -> Iterator[Reason]:
    """A reason if the ``question`` finds another session whose transaction is the cause. Only PostgreSQL can tell."""
    for pid, application, state, seconds in sessions(view.using, question, value)[:1]:
        evidence |= {"pid": pid, "application": application, "state": state, "seconds": seconds}
        cure = gettext("SELECT * FROM pg_stat_activity WHERE pid = %s shows what that does.") % pid
        yield Reason(code, says, cure, {"since": duration(evidence["seconds"])}, **evidence)


def due(view: View) -> Iterator[Reason]:
    """The job is due, and no worker runs it yet."""
    if not view.is_due:
        return
    yield from locked(view)
    says = gettext(
        "Its row is locked by the database process %(pid)s (%(state)s, its transaction open for %(since)s): no "
        "worker can claim it."
    )
    yield from held_up(view, "row_locked", says, "locks", view.job.pk)
    if view.pause is None and view.consumers:
        # A pause, or a missing worker, matters more, and was reported already.
        yield from _write_lock(view)
        found = [reason for waits in extensions.through("waits") for reason in waits(view)]
        yield from found or _in_line(view)


def _write_lock(view: View) -> Iterator[Reason]:
    """On SQLite no worker can claim while a body is in its transaction, even if processes are idle."""
    if not store.of(view.using).has_one_writer:
        return
    alive = [worker for worker in view.workers if worker.is_alive]
    running = Job.objects.using(view.using).filter(state=State.RUNNING, node__in=alive)
    for job in running.order_by("started_at", "rank", "run_at", "pk")[:SHOWN]:
        if getattr(view.tasks.get(job.task), "atomic", False) and (seconds := view.since(job.started_at)) > LONG:
            says = gettext(
                "The job %(job)s (%(task)s) has been running for %(since)s in a transaction. On SQLite that holds the "
                "one write lock: no worker can take another job until it ends."
            )
            cure = gettext(
                "Keep bodies short on SQLite, and declare those that sleep or wait for the network with atomic=False. "
                "To end it: manage.py jobs kill %s"
            )
            evidence = {"job": job.pk, "task": job.task, "seconds": seconds}
            yield Reason("write_lock", says, cure % job.pk, {"since": duration(seconds)}, **evidence)
            return


def _in_line(view: View) -> Iterator[Reason]:
    job, since = view.job, view.since(view.job.run_at)
    running = Job.objects.using(view.using).filter(state=State.RUNNING, node__in=view.consumers).count()
    processes = sum(worker.concurrency or 0 for worker in view.consumers)
    words = {"ago": duration(max(0.0, since)), "processes": processes or "?"}
    evidence = {"due_seconds": since, "running": running, "processes": processes}
    is_late = since > late_after()
    if job.state == State.SCHEDULED and is_late:
        says = gettext("It has been due for %(ago)s, and no worker has made it ready.")
        yield Reason("overdue", says, gettext("Every worker does that: look at their logs."), words, **evidence)
        return
    if job.state == State.SCHEDULED:
        says = gettext("It has been due for %(ago)s, and a worker makes it ready in a moment.")
        yield Reason("due", says, "", words, **evidence)
        return
    ahead, cure = view.ahead_of(in_line(view.using).filter(queue=job.queue)), ""
    evidence |= {"ahead": ahead, "capped": ahead == MOST}
    if ahead or 0 < processes <= running:
        cure = gettext("If that takes too long: more workers, or more processes (--concurrency).")
    if ahead:
        words["ahead"] = at_least(ahead, ahead == MOST)
        code = "in_line"
        says = ngettext(
            "It has been ready for %(ago)s and waits for its turn: %(ahead)s ready job of its queue comes before it. "
            "Its workers have %(processes)s processes; running: %(running)s.",
            "It has been ready for %(ago)s and waits for its turn: %(ahead)s ready jobs of its queue come before it. "
            "Its workers have %(processes)s processes; running: %(running)s.",
            ahead,
        )
    elif 0 < processes <= running:
        code = "busy_workers"
        says = gettext(
            "It has been ready for %(ago)s, is the next of its queue, and its workers are busy: they have "
            "%(processes)s processes; running: %(running)s."
        )
    elif is_late:
        code = "not_taken"
        says = gettext("It has been ready for %(ago)s, is the next of its queue, and no worker takes it.")
        cure = gettext("Look at the workers' logs: manage.py jobs doctor")
    else:
        code, says = "next", gettext("It has been ready for %(ago)s, and a worker takes it in a moment.")
    yield Reason(code, says, cure, words, **evidence)
    if is_late:
        says = gettext(
            "The database process %(pid)s (%(state)s) keeps a transaction open for %(since)s: each claim steps over "
            "all jobs that were ready since then."
        )
        yield from held_up(view, "old_transaction", says, "old", OLD)


def misfit(view: View) -> Iterator[Reason]:
    """The arguments do not fit the present signature of the task."""
    job, task = view.job, view.task
    if not getattr(task, "is_transactional", False):
        return
    try:
        task.body_signature.bind(*job.args, **job.kwargs)
    except TypeError as exc:
        says = gettext("Its arguments do not fit the task as it is now, %(task)s%(signature)s: %(error)s.")
        cure = gettext(
            "Let the task take the old arguments as well until no such job is left (a default for what is new), "
            "deploy, and retry: manage.py jobs retry %s"
        )
        # A person may have edited them into something else.
        args, kwargs = (value if isinstance(value, list | dict) else [value] for value in (job.args, job.kwargs))
        evidence = {"args": len(args), "kwargs": sorted(kwargs, key=str), "signature": str(task.body_signature)}
        yield Reason("old_signature", says, cure % job.pk, {"task": job.task, "error": exc}, **evidence)


#: First the looks for what keeps the job now, then for what would keep it after that.
LOOKS = (expired, not_adopted, own_time, paused, no_worker, unknown_task, due, misfit)
