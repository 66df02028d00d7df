"""Why a job waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext, ngettext

from jobs import publisher, strays
from jobs.conf import conf
from jobs.keys import bind, signature_of
from jobs.maintenance.relay import LONGEST_TICK
from jobs.models import State
from jobs.times import duration
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
        way = list(_on_its_way(view))
        if not way or way[0].code in ("in_line", "due"):
            # All is well with its message, and it will find that.
            yield from _locked(view)
        yield from way
        yield from _locked(view)
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
    if error and (error["attempt"] == job.lease or _is_of_a_stray(view)):
        values |= {"error": f"{error['type']}: {error['message']}"}
        when |= {"error": error["type"], "message": error["message"], "at": error["at"]}
    else:
        error = None
    run = gettext("Without waiting: manage.py jobs run %(id)s") % {"id": job.pk}
    if error is None:
        says = gettext("It is scheduled, and runs in %(until)s.") % values
        yield Reason("scheduled", says, run, when)
    elif error["message"].startswith((publisher.REFUSED, publisher.UNBUILT, publisher.FULL)):
        says = gettext("It cannot be published (%(error)s). It is tried again in %(until)s.") % values
        yield Reason("unpublishable", says, gettext("Look at its queue and exchange, and at CELERY_TASK_QUEUES."), when)
    elif _is_of_a_stray(view):
        # What one worker said of it.
        yield from _unknown_task(view)
        says = gettext("A worker could not run it (%(error)s). It is tried again in %(until)s.") % values
        yield Reason("postponed", says, gettext("Deploy the same code to all workers."), when)
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


def _is_of_a_stray(view: View) -> bool:
    """Whether a worker got its message since its last run, and could not run it."""
    error, started = view.error or {}, view.job.started_at
    return error.get("type") in strays.KINDS and (started is None or str(error["at"]) > started.isoformat())


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


def _on_its_way(view: View) -> Iterator[Reason]:
    job = view.job
    if job.state == State.SCHEDULED or job.dispatched_at is None:
        # Of a paused queue nothing is published.
        yield from _unpublished(view) if view.pause is None else ()
        return
    since = view.since(job.dispatched_at)
    evidence: dict[str, Any] = {"published_seconds": round(since, 3), "republished": job.republished}
    if view.trouble:
        says = gettext("It was published %(ago)s ago, and the broker cannot be reached from here: %(trouble)s.")
        says %= {"ago": view.ago(job.dispatched_at), "trouble": view.trouble}
        yield Reason("broker_down", says, gettext("Look at the broker."), {**evidence, "trouble": view.trouble})
        return
    slots = sum(worker.node.concurrency or 0 for worker in view.consumers)
    evidence |= {"messages": view.depth, "running": view.running, "processes": slots}
    values = {
        "ago": view.ago(job.dispatched_at),
        "messages": "?" if view.depth is None else view.depth,
        "running": view.running,
        "slots": slots or "?",
    }
    if view.depth == 0 and since > conf().GRACE:
        says = gettext("It was published %(ago)s ago, and its queue is empty: the message seems lost.") % values
        cure = gettext("The relay publishes it again by itself; without waiting: manage.py jobs run %s") % job.pk
        yield Reason("message_lost", says, cure, evidence)
        return
    says = gettext(
        "It was published %(ago)s ago and waits for its turn: %(messages)s messages are in its queue, %(running)s of "
        "its jobs run, on %(slots)s processes."
    )
    cure = gettext("If that takes too long: more workers, or more processes (--concurrency).")
    yield Reason("in_line", says % values, cure if view.consumers else "", evidence)


def _unpublished(view: View) -> Iterator[Reason]:
    job = view.job
    late = view.since(job.run_at)
    troubles = {worker.name: worker.node.relay_error for worker in view.alive if worker.node.relay_error}
    evidence = {"due_seconds": round(late, 3), "relays": troubles, "trouble": view.trouble}
    trouble = next(iter(troubles.values()), view.trouble)
    values = {"ago": view.ago(job.run_at), "trouble": trouble}
    if trouble:
        says = gettext("It is due since %(ago)s, and the relay cannot publish it: %(trouble)s.") % values
        cure = gettext("Look at the broker: as soon as it answers, the relay goes on by itself.")
        yield Reason("relay_stuck", says, cure, evidence)
    elif late > conf().RELAY_INTERVAL + 3 * LONGEST_TICK:
        says = gettext("It is due since %(ago)s, and no relay has published it.") % values
        cure = gettext(
            "Every worker relays; look at their logs. By hand: manage.py jobs relay --once. With very many due jobs "
            "let manage.py jobs relay run on its own."
        )
        yield Reason("relay_behind", says, cure, evidence)
    else:
        says = gettext("It is due since %(ago)s, and published by the relay in a moment.") % values
        yield Reason("due", says, "", evidence)


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
