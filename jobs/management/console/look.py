"""``manage.py jobs status|why|list|show|nodes|verify``: what there is. Nothing is changed."""

import heapq
import time
import uuid
from argparse import Namespace
from dataclasses import asdict
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.utils.translation import gettext

from jobs.conf import conf, worker_command
from jobs.inspection import census, public, remarks
from jobs.inspection import verify as promise
from jobs.inspection import why as reasons
from jobs.inspection.census import LIVE, at_least
from jobs.inspection.times import duration
from jobs.lifecycle.redaction import Shown, veil
from jobs.management.console.base import ID, LIMIT, JobsCommand, local, option, reported, subcommand
from jobs.management.console.change import WHICH, key_of, which
from jobs.models import ENDED, Action, Job, Node, State
from jobs.store import databases


@subcommand(option("--live", "leave out the ended jobs, whose count reads all history", action="store_true"))
def status(out: JobsCommand, args: Namespace) -> None:
    """Counts by state and queue, workers, the oldest ready job, what is overdue.

    Of a long backlog 10,000 jobs a queue are counted: 10000+. The count of ended jobs reads the whole table.
    --live leaves it out, for monitoring.

    examples:
      manage.py jobs status
      manage.py jobs status --live --json
    """
    found = census.gather(args.live)
    noted = remarks.of(found)
    out.say_json({**found, "remarks": [asdict(each) for each in noted]})
    rows = []
    for name, counts in [*found["queues"].items(), ("total", {**found["jobs"], "capped": found["capped"]})]:
        rows.append([name, *(at_least(counts[state], counts["capped"] and state != State.RUNNING) for state in LIVE)])
    out.say_table(["queue", *LIVE], rows)
    out.say("")
    if not args.live:
        out.say_table(["ended", *ENDED], [["total", *(found["jobs"][state] for state in ENDED)]])
        out.say("")
    if found["nodes"]:
        _say_nodes(out, found["nodes"])
        out.say("")
    alive = sum(node["alive"] for node in found["nodes"])
    oldest = found["oldest_ready_seconds"]
    out.say(f"workers: {alive} alive, {len(found['nodes']) - alive} silent, {found['dead_nodes']} died in the last day")
    out.say("no job is ready" if oldest is None else f"the oldest ready job has waited {duration(oldest)}")
    out.say(remarks.sentence(noted))
    for each in noted:
        out.say(each.line)


@subcommand(ID)
def why(out: JobsCommand, args: Namespace) -> None:
    """Say why a job is where it is, with evidence and cure.

    The first reason is the one that counts; the others would count after it. Nothing is changed. The exit
    status is 1 if there is no such job.

    examples:
      manage.py jobs why 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11
      manage.py jobs why --json ID
    """
    key = key_of(args.id)
    view, found = reasons.explain(key)
    job = None if view is None else view.job
    listed = [{name: getattr(each, name) for name in ("code", "says", "cure", "evidence")} for each in found]
    about = {name: job and getattr(job, name) for name in ("task", "state", "queue")}
    out.say_json({"id": str(key), **about, "database": view and view.using, "reasons": listed})
    if job is not None:
        state = out.style.WARNING(str(dict(State.choices).get(job.state, job.state)))
        out.say(f"{job.task}[{key}] {state}, {gettext('queue')} {job.queue}")
    for number, reason in enumerate(found, 1):
        out.say(f"{number}. {out.style.MIGRATE_HEADING(reason.says) if number == 1 else reason.says}")
        if reason.cure:
            out.say(f"   -> {reason.cure}")
    if job is None and found[0].code == "unknown":
        raise CommandError(gettext("There is no job %(id)s.") % {"id": key})


@subcommand(*WHICH, LIMIT)
def list_(out: JobsCommand, args: Namespace) -> None:
    """List jobs, the newest first.

    examples:
      manage.py jobs list --state failed --since 2h
      manage.py jobs list --task 'shop.*' --limit 100 --json
    """
    if args.limit < 1:
        raise CommandError("--limit has to be 1 or more.")
    selection = which(args)
    newest = [selection.rows(alias).order_by("-pk")[: args.limit + 1] for alias in conf().DATABASES]
    jobs = list(heapq.merge(*newest, key=lambda job: job.pk, reverse=True))
    veil(jobs)
    out.say_json([as_dict(job) for job in jobs[: args.limit]])
    rows = []
    for job in jobs[: args.limit]:
        shape = job.error if isinstance(job.error, dict) else {"type": "?", "message": job.error}
        error = f"{shape.get('type')}: {shape.get('message')} ".splitlines()[0][:60].strip() if job.error else ""
        rows.append([str(job.pk), job.state, job.task, job.queue, local(job.created_at), str(job.lease), error])
    head = ["id", "state", "task", "queue", "created", "attempts", "error"]
    out.say_table(head, rows, "There is no such job.")
    if len(jobs) > args.limit:
        out.say(f"and more: --limit {2 * args.limit}")


@subcommand(
    ID, option("--follow", "say how far it is, once a second, until it has ended; then show it", action="store_true")
)
def show(out: JobsCommand, args: Namespace) -> None:
    """All that is known of one job: arguments, times, counts, progress, result and errors.

    examples:
      manage.py jobs show 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11
      manage.py jobs show --follow ID
      manage.py jobs show --json ID
    """
    key = key_of(args.id)
    if args.follow:
        _follow(out, key)
    job: Job | None = databases.first(Job.objects.filter(pk=key))
    if job is None:
        raise CommandError(f"There is no job {key}; manage.py jobs why {key} says what that may mean.")
    using = job._state.db
    veil([job])
    seen = Shown(job)
    found = as_dict(job, args=seen.args, kwargs=seen.kwargs, result=seen.result, errors=job.errors, cursor=seen.cursor)
    said = public.said([job]).get(job.pk)
    found["progress"] = said and {**said._asdict(), "percent": said.percent}
    if job.node_id and (node := Node.objects.using(using).filter(pk=job.node_id).first()) is not None:
        found["node"] = str(node)
    out.say_json(found)
    errors, last, found["progress"] = found.pop("errors"), found.pop("error"), said
    if last is not None and last not in errors[-1:]:
        errors = [*errors, last]
    width = max(map(len, found))
    for name, value in found.items():
        if value not in (None, ""):
            out.say(f"{name.ljust(width)}  {value}")
    for action in Action.objects.using(using).filter(job=job.pk).order_by("pk"):
        out.say(f"{local(action.at)} {action.what} by {action.by or '?'} {action.why}".rstrip())
    for entry in errors:
        if not isinstance(entry, dict):
            entry = {"message": entry}
        out.say("")
        out.say(f"{out.style.WARNING(str(entry.get('type')))}, attempt {entry.get('attempt')}, {entry.get('at')}")
        out.say(str(entry.get("traceback") or entry.get("message")).rstrip(), keep="\n")


def _follow(out: JobsCommand, key: uuid.UUID) -> None:
    """Write a line for each change of the state or the progress."""
    line = None
    while (job := databases.first(Job.objects.filter(pk=key))) is not None:
        before, line = line, f"{job.state} {public.said([job]).get(key) or ''}".rstrip()
        if line != before:
            out.say(line)
        if job.state in ENDED:
            return
        time.sleep(1.0)


@subcommand()
def nodes(out: JobsCommand, args: Namespace) -> None:
    """The workers: their last beat, version, processes, running jobs and queues.

    The exit status is 1 if none is alive.

    examples:
      manage.py jobs nodes
      manage.py jobs nodes --json
    """
    found = census.nodes()
    out.say_json(found)
    if found:
        _say_nodes(out, found)
    if not any(node["takes_jobs"] for node in found):
        raise CommandError(f"No worker is alive: {worker_command()}")


def _say_nodes(out: JobsCommand, nodes: list[dict[str, Any]]) -> None:
    rows = []
    for node in nodes:
        beat = "never" if node["beat_seconds"] is None else f"{duration(node['beat_seconds'])} ago"
        beat += ("" if node["alive"] else " (silent)") + (" (stopping)" if node["stopping"] else "")
        pool = f"{node['pool']} {node['concurrency']}" if node["pool"] else "?"
        where = [node["id"][:8], node["hostname"], node["pid"], node["version"] or "?", pool]
        rows.append([*where, duration(node["age_seconds"]), beat, node["running"], ", ".join(node["queues"])])
    out.say_table(["worker", "host", "pid", "version", "pool", "up for", "last beat", "running", "queues"], rows)


@subcommand(
    option("--all", "read all jobs, however long it takes", action="store_true", dest="everything"),
    option(
        "--no-watch",
        action="store_false",
        dest="patient",
        help="let the times in the rows decide at once; right after an outage of the database they are wrong",
    ),
)
def verify(out: JobsCommand, args: Namespace) -> None:
    """Hold the promise against the data: what breaks it, and what is about to be put right.

    One line for each rule. A violation breaks the promise. A row that recovers waits for a worker, for a person
    (an external call), behind others, or for no longer than recovery may take. Rows that should have recovered
    by now are watched before they are called violations; that takes up to a minute, and only if there are any.
    Nothing is changed.

    The exit status is 0 without violations, 1 with violations, 2 if a database cannot be asked. Of each live
    state 10,000 jobs are read, and of history 100,000 of those that were made in the last day.

    examples:
      manage.py jobs verify
      manage.py jobs verify --verbosity 2
      manage.py jobs verify --all --json
    """
    with reported(promise.Unverifiable, ImproperlyConfigured, code=2):
        report = promise.verify(
            everything=args.everything, patient=args.patient, tell=lambda line: out.warn(line, out.style.NOTICE)
        )
    counts = {"violations": report.violations, "recovering": report.recovering, "workers": report.workers}
    rules = [asdict(finding) for finding in report.findings]
    out.say_json({**counts, "databases": list(conf().DATABASES), "everything": args.everything, "rules": rules})
    width = max(len(finding.rule) for finding in report.findings)
    for finding in report.findings:
        parts = [f"{word} {count}" for word in ("violations", "recovering") if (count := getattr(finding, word))]
        style = out.style.ERROR if finding.violations else out.style.WARNING if parts else out.style.SUCCESS
        verdict = style((", ".join(parts) or "ok").ljust(13))
        out.say(f"{finding.rule.ljust(width)}  {verdict}  {finding.says}")
        for example in finding.examples if args.verbosity > 1 else ():
            out.say(f"{' ' * width}    {example}")
    workers = f"{report.workers} worker{'' if report.workers == 1 else 's'}"
    workers += "" if report.workers else ": nothing recovers without one"
    out.say(f"{len(rules)} rules, {report.violations} violations, {report.recovering} recovering, {workers}")
    if report.violations:
        raise CommandError(f"{report.violations} violations of the promise.")


def as_dict(job: Job, **more: Any) -> dict[str, Any]:
    names = "id task queue priority state run_at expires_at lease retries crashes node_losses snoozes created_at"
    names += " started_at finished_at parent_id root_id marker_key replay_of unique_key error"
    found = {name: getattr(job, name) for name in names.split()}
    return found | more | {"node": job.node_id, "database": job._state.db}
