"""``manage.py jobs schedule``: what runs again and again, and what a person decides about it."""

from __future__ import annotations

from argparse import Namespace

from django.core.management.base import CommandError

from jobs import extensions
from jobs.contrib.console.base import REASON, STEER, JobsCommand, local, me, option, reported, subcommand
from jobs.contrib.schedules import operations
from jobs.contrib.schedules import rows as rows_of


@subcommand(
    option("--pause", "let the ticks of this entry pass without jobs", metavar="NAME"),
    option("--resume", "go on with the next tick of this entry", metavar="NAME"),
    option("--run", "make a job of this entry now", metavar="NAME"),
    REASON,
    wish=STEER,
)
def schedule(out: JobsCommand, args: Namespace) -> None:
    """List what the workers run again and again: the next run, the last one and how it ended, missed ticks.

    The times are those of the settings' time zone. An entry that is paused makes no jobs, and what passes
    meanwhile is not made up for. Its name is the key of beat_schedule, or that of the task with every=.

    examples:
      manage.py jobs schedule
      manage.py jobs schedule --pause nightly-report --reason "the warehouse is moved"
      manage.py jobs schedule --run nightly-report
      manage.py jobs schedule --json
    """
    asked = [(verb, name) for verb in ("pause", "resume", "run") if (name := getattr(args, verb)) is not None]
    if len(asked) > 1:
        raise CommandError("Say one of --pause, --resume and --run.")
    if asked:
        _change(out, *asked[0], args.reason)
        return
    found = rows_of.gather(rows_of.has_workers())
    out.say_json(found)
    rows = []
    for each in found:
        moments = [local(each["next_tick"]), local(each["last_run"])]
        tail = [each["state"] or "-", str(each["missed"]), str(rows_of.STATUSES[each["status"]])]
        rows.append([each["name"], each["task"], each["timing"], *moments, *tail])
    head = ["name", "task", "when", "next", "last", "ended", "missed", "status"]
    out.say_table(
        head,
        rows,
        "There is no entry: beat_schedule, add_periodic_task() or a task's every= make one, and a worker that starts "
        "reports it.",
    )
    if "jobs.contrib.operator" in extensions.present():
        # The operator's room has the texts of what is wrong.
        from jobs.contrib.schedules.operator import problems

        for problem in problems({"schedules": found}):
            out.say(problem.line)


def _change(out: JobsCommand, verb: str, name: str, reason: str) -> None:
    if verb == "run":
        with reported(LookupError, TypeError, ValueError):
            job = operations.run(name, me(), reason)
    else:
        job = None
        if not (operations.pause(name, me(), reason) if verb == "pause" else operations.resume(name)):
            raise CommandError(f"{name!r} is not {'running' if verb == 'pause' else 'paused'}, or no worker knows it.")
    out.say_json({"name": name, "done": verb, "job": job})
    out.say(f"{name}: {'the job ' + str(job) + ' runs' if job else verb + 'd'}")
