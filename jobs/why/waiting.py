"""Why a job waits."""

from __future__ import annotations

from collections.abc import Iterator

from django.utils.translation import gettext, ngettext

from jobs.census import MOST, UNKNOWN, at_least, late_after
from jobs.keys import bind, signature_of
from jobs.models import State
from jobs.times import duration
from jobs.why.locked import row_locked, slowed
from jobs.why.reason import Reason
from jobs.why.view import View


def reasons(view: View) -> Iterator[Reason]:
    """What keeps it now comes first, and then what would keep it after that."""
    job = view.job
    is_due = job.state == State.READY or job.run_at <= view.now
    yield from _expired(view)
    yield from _not_adopted(view)
    if not is_due:
        yield from _own_time(view)
    yield from _paused(view)
    yield from _no_worker(view)
    yield from _unknown_task(view)
    if is_due:
        yield from _locked(view)
        yield from _in_line(view)
    yield from misfit(view)


def _expired(view: View) -> Iterator[Reason]:
    expires = view.job.expires_at
    if expires is not None and expires <= view.now:
        yield Reason(
            "expired",
            gettext("It expired %(ago)s ago, before a worker started it. It is cancelled instead of run.")
            % {"ago": view.ago(expires)},
            gettext("Enqueue it again, with a later expires=. The reasons below say what kept it."),
            {"expires_at": expires.isoformat()},
        )


def _not_adopted(view: View) -> Iterator[Reason]:
    marked_as, really = view.marks["marked_as"], view.marks["is"]
    if marked_as not in (None, really):
        yield Reason(
            "not_adopted",
            gettext(
                "The database is marked as another one (%(mark)s): a copy of it, or it was moved. Workers refuse it."
            )
            % {"mark": marked_as},
            gettext("If its jobs should run here: manage.py jobs adopt --dry-run"),
            {"marked_as": marked_as, "is": really},
        )


def _own_time(view: View) -> Iterator[Reason]:
    job, error = view.job, view.error
    when = {"run_at": job.run_at.isoformat(), "seconds": round(-view.since(job.run_at), 3)}
    values = {"until": view.until(job.run_at)}
    if error and (error["attempt"] == job.lease or _was_unknown(view)):
        values |= {"error": f"{error['type']}: {error['message']}"}
        when |= {"error": error["type"], "message": error["message"], "at": error["at"]}
    else:
        error = None
    run = gettext("Without waiting: manage.py jobs run %(id)s") % {"id": job.pk}
    if error is None:
        says = gettext("It is scheduled, and runs in %(until)s.") % values
        yield Reason("scheduled", says, run, when)
    elif error["type"] == UNKNOWN:
        # What one worker said of it.
        yield from _unknown_task(view)
        says = gettext("A worker that does not know its task put it behind the others. It is tried again in %(until)s.")
        yield Reason("postponed", says % values, gettext("Deploy the same code to all workers."), when)
    elif error["type"] == "Busy":
        yield from _locked(view)
        says = gettext("What it needs is busy (%(error)s). It tries again in %(until)s, and uses no attempt.") % values
        yield Reason("busy", says, "", when)
    elif error["type"] == "Snooze":
        says = gettext("Its body asked for a later time (snooze number %(n)s). It runs in %(until)s.")
        yield Reason("snoozed", says % {**values, "n": job.snoozes}, run, {**when, "snoozes": job.snoozes})
    elif job.retries and error["type"] not in ("WorkerLostError", "NodeLost"):
        says = gettext("Its last run failed: %(error)s. Retry number %(n)s runs in %(until)s.")
        cure = gettext("If the cause is gone: manage.py jobs run %(id)s") % {"id": job.pk}
        yield Reason("retry", says % {**values, "n": job.retries}, cure, {**when, "retries": job.retries})
    else:
        says = gettext("It was given back (%(error)s), and runs again in %(until)s.") % values
        counts = {name: getattr(job, name) for name in ("crashes", "node_losses", "snoozes", "retries")}
        yield Reason("given_back", says, run, {**when, **counts})


def _was_unknown(view: View) -> bool:
    """Whether a worker met it since its last run, and did not know its task."""
    error, started = view.error or {}, view.job.started_at
    return error.get("type") == UNKNOWN and (started is None or str(error["at"]) > started.isoformat())


def _paused(view: View) -> Iterator[Reason]:
    if (pause := view.pause) is not None:
        says = gettext("The queue %(queue)s is paused since %(ago)s%(by)s%(why)s.") % {
            "queue": pause.queue,
            "ago": view.ago(pause.at),
            "by": gettext(", by %s") % pause.by if pause.by else "",
            "why": f": {pause.reason}" if pause.reason else "",
        }
        cure = f"manage.py jobs resume {pause.queue}"
        yield Reason("queue_paused", says, cure, {"queue": pause.queue, "at": pause.at.isoformat(), "by": pause.by})


def _no_worker(view: View) -> Iterator[Reason]:
    queue = view.job.queue
    if view.consumers:
        return
    silent = [worker.name for worker in view.workers if not worker.is_alive]
    stopping = [worker.name for worker in view.alive if not worker.takes_jobs]
    evidence = {
        "queue": queue,
        "workers": {worker.name: worker.node.queues for worker in view.alive if worker.takes_jobs},
        "stopping": stopping,
        "silent": silent,
    }
    cure = f"celery -A proj worker -Q {queue}"
    if number := len(evidence["workers"]):
        text = ngettext(
            "%(number)s worker is alive, and it does not consume the queue %(queue)s.",
            "%(number)s workers are alive, and none consumes the queue %(queue)s.",
            number,
        )
        yield Reason("no_consumer", text % {"number": number, "queue": queue}, cure, evidence)
    elif stopping:
        text = gettext("No worker takes new jobs: %(stopping)s was told to stop.") % {"stopping": ", ".join(stopping)}
        yield Reason("no_worker", text, gettext("Start another: %s") % cure, evidence)
    elif silent:
        text = gettext("No worker is alive: %(silent)s went silent.") % {"silent": ", ".join(silent)}
        yield Reason("no_worker", text, gettext("Look at its machine, or start another: %s") % cure, evidence)
    else:
        yield Reason("no_worker", gettext("No worker is alive."), cure, evidence)


def _unknown_task(view: View) -> Iterator[Reason]:
    job = view.job
    workers = view.consumers
    if not workers or any(job.task in worker.node.tasks for worker in workers):
        return
    elsewhere = [worker.name for worker in view.alive if job.task in worker.node.tasks]
    text = ngettext(
        "The worker that consumes its queue does not know the task %(task)s.",
        "None of the %(number)s workers that consume its queue knows the task %(task)s.",
        len(workers),
    )
    yield Reason(
        "unknown_task",
        text % {"number": len(workers), "task": job.task},
        gettext(
            "Deploy the code that has it, and see that the worker imports it (autodiscover_tasks, imports). If it was "
            "renamed or removed: manage.py jobs cancel %(id)s"
        )
        % {"id": job.pk},
        {
            "task": job.task,
            "workers": {worker.name: worker.node.version for worker in workers},
            "known_by": elsewhere,
            "known_here": view.task is not None,
        },
    )


def _locked(view: View) -> Iterator[Reason]:
    if view.held_lock is None:
        return
    key, held = view.held_lock
    holder = gettext("the job %s") % held.job if held.job else gettext("somebody who is no job")
    until = "" if held.left is None else gettext(", for %s more unless it is renewed") % duration(held.left)
    yield Reason(
        "lock_held",
        gettext("The lock %(key)s is held by %(holder)s%(until)s. It tries again until that is free.")
        % {"key": repr(key), "holder": holder, "until": until},
        f"manage.py jobs why {held.job}" if held.job else "",
        {"lock": key, "job": held.job and str(held.job), "seconds": held.left},
    )


def _in_line(view: View) -> Iterator[Reason]:
    job, late = view.job, view.since(view.job.run_at)
    values = {"ago": view.ago(job.run_at), "running": view.running, "processes": view.processes or "?"}
    evidence = {"due_seconds": round(late, 3), "running": view.running, "processes": view.processes}
    is_late = late > late_after()
    yield from row_locked(view)
    if view.pause is not None or not view.consumers:
        # That was said, and keeps it for longer than any line.
        return
    if job.state == State.SCHEDULED:
        if is_late:
            says = gettext("It is due since %(ago)s, and no worker has made it ready.")
            cure = gettext("Every worker does that: look at their logs.")
            yield Reason("overdue", says % values, cure, evidence)
        else:
            says = gettext("It is due since %(ago)s, and a worker makes it ready in a moment.")
            yield Reason("due", says % values, "", evidence)
        return
    evidence |= {"ahead": view.ahead, "capped": view.ahead == MOST}
    is_busy = 0 < view.processes <= view.running
    more = gettext("If that takes too long: more workers, or more processes (--concurrency).")
    if view.ahead:
        says = ngettext(
            "It is ready since %(ago)s and waits for its turn: %(ahead)s ready job of its queue comes before it. Its "
            "workers have %(processes)s processes; running: %(running)s.",
            "It is ready since %(ago)s and waits for its turn: %(ahead)s ready jobs of its queue come before it. Its "
            "workers have %(processes)s processes; running: %(running)s.",
            view.ahead,
        )
        yield Reason("in_line", says % {**values, "ahead": at_least(view.ahead, view.ahead == MOST)}, more, evidence)
    elif is_busy:
        says = gettext(
            "It is ready since %(ago)s and the next of its queue, and its workers are busy: they have %(processes)s "
            "processes; running: %(running)s."
        )
        yield Reason("busy_workers", says % values, more, evidence)
    elif is_late:
        says = gettext("It is ready since %(ago)s and the next of its queue, and no worker takes it.")
        yield Reason("not_taken", says % values, gettext("Look at the workers' logs: manage.py jobs doctor"), evidence)
    else:
        says = gettext("It is ready since %(ago)s, and a worker takes it in a moment.")
        yield Reason("next", says % values, "", evidence)
    if is_late:
        yield from slowed(view)


def misfit(view: View) -> Iterator[Reason]:
    """The arguments do not fit the task as it is now."""
    task = view.task
    if task is None or not getattr(task, "is_transactional", False):
        return
    try:
        signature = signature_of(type(task))
        bind(signature, view.job.args, view.job.kwargs)
    except TypeError as exc:
        yield Reason(
            "old_signature",
            gettext("Its arguments do not fit the task as it is now, %(task)s%(signature)s: %(error)s.")
            % {"task": view.job.task, "signature": signature, "error": exc},
            gettext(
                "Let the task take the old arguments as well until no such job is left (a default for what is new), "
                "deploy, and retry: manage.py jobs retry %s"
            )
            % view.job.pk,
            {"args": len(view.job.args), "kwargs": sorted(view.job.kwargs), "signature": str(signature)},
        )
