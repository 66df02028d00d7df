"""``manage.py jobs status|nodes|tell``; ``doctor``, ``init``, ``audit`` and ``top`` have files of their own."""

from argparse import Namespace
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from jobs.contrib.console.base import LOOK, STEER, JobsCommand, me, option, reported, subcommand
from jobs.contrib.inspection.counts import at_least, worker_command
from jobs.contrib.inspection.times import duration
from jobs.contrib.operator import problems, workers
from jobs.contrib.operator import status as now
from jobs.contrib.operator.doctor import doctor
from jobs.contrib.operator.project.audit import audit
from jobs.contrib.operator.project.init import init
from jobs.contrib.operator.top import top
from jobs.models import ENDED, LIVE, State


@subcommand(option("--live", "leave out the ended jobs", action="store_true"), wish=LOOK)
def status(out: JobsCommand, args: Namespace) -> None:
    """Counts by state and queue, workers, the oldest ready job, what is overdue.

    Of a long backlog 10,000 jobs a queue are counted: 10000+. On PostgreSQL the numbers of ended jobs are its
    own estimates, by its last ANALYZE, if there are more than 100,000: ~1200000. Elsewhere their count reads the
    whole table. --live leaves it out, for monitoring.

    examples:
      manage.py jobs status
      manage.py jobs status --live --json
    """
    found = now.gather(args.live)
    noted = problems.of(found)
    out.say_json({**found, "remarks": [asdict(each) for each in noted]})
    rows = []
    for name, counts in [*found["queues"].items(), ("total", {**found["jobs"], "capped": found["capped"]})]:
        rows.append([name, *(at_least(counts[state], counts["capped"] and state != State.RUNNING) for state in LIVE)])
    out.say_table(["queue", *LIVE], rows)
    out.say("")
    if not args.live:
        about = "~" if found["estimated"] else ""
        out.say_table(["ended", *ENDED], [["total", *(f"{about}{found['jobs'][state]}" for state in ENDED)]])
        out.say("")
    if found["nodes"]:
        _say_nodes(out, found["nodes"])
        out.say("")
    alive = sum(node["alive"] for node in found["nodes"])
    oldest = found["oldest_ready_seconds"]
    out.say(f"workers: {alive} alive, {len(found['nodes']) - alive} silent, {found['dead_nodes']} died in the last day")
    out.say("no job is ready" if oldest is None else f"the oldest ready job has waited {duration(oldest)}")
    out.say(problems.sentence(noted))
    for each in noted:
        out.say(each.line)


@subcommand(wish=LOOK)
def nodes(out: JobsCommand, args: Namespace) -> None:
    """The workers: their last beat, version, processes, running jobs and queues.

    The exit status is 1 if none is alive.

    examples:
      manage.py jobs nodes
      manage.py jobs nodes --json
    """
    found = now.nodes()
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
    option("verb", "quiet, resume or stop", choices=[*workers.LABELS]),
    option("names", "a worker: its id, the first 8 digits of it, or its host", nargs="+", metavar="WORKER"),
    option("--why", "the reason, for the worker's log", default="", also="--reason"),
    wish=STEER,
)
def tell(out: JobsCommand, args: Namespace) -> None:
    """Tell workers to be quiet, to claim jobs again, or to stop, on whatever machine they are.

    One that is quiet claims nothing more and finishes what it runs. One that stops does so as by SIGTERM: when what
    it runs has ended. They obey within a second or so. The exit status is 1 if one was not told.

    examples:
      manage.py jobs tell quiet 019aae3c --why "its disk is full"
      manage.py jobs tell resume 019aae3c
      manage.py jobs tell stop web-2
    """
    with reported(says="{}: manage.py jobs nodes"):
        nodes = [workers.find(name) for name in args.names]
    told = {str(node.pk): workers.tell(node.pk, args.verb, me(), args.why) for node in nodes}
    out.say_json({"verb": args.verb, "told": told})
    for node in nodes:
        if told[str(node.pk)]:
            out.say(f"{node}: {args.verb}")
    if dead := [str(node) for node in nodes if not told[str(node.pk)]]:
        raise CommandError(f"Not told, because dead by now: {', '.join(dead)}")


__all__ = ["audit", "doctor", "init", "nodes", "status", "tell", "top"]
