"""``manage.py jobs pause|resume``."""

from argparse import Namespace

from jobs.contrib.console.base import REASON, STEER, JobsCommand, me, option, reported, subcommand
from jobs.contrib.console.change import warn_of_unknown
from jobs.contrib.inspection import counts
from jobs.contrib.pauses import pauses


@subcommand(option("names", "the name of a queue", nargs="*", metavar="QUEUE"), REASON, wish=STEER)
def pause(out: JobsCommand, args: Namespace) -> None:
    """Let the jobs of queues wait, for every worker at once, until they are resumed.

    What runs goes on. Jobs are enqueued as before, and expire as before. It survives restarts of everything.
    Without a queue: say which are paused.

    examples:
      manage.py jobs pause
      manage.py jobs pause mail --reason "the mail server is moved"
    """
    if args.names:
        warn_of_unknown(out, args.names)
    with reported():
        done = {name: pauses.pause(name, me(), args.reason) for name in dict.fromkeys(args.names)}
    _say_switched(out, done, "paused", "was paused already")
    if not args.names:
        rows = counts.paused().values()
        for row in rows:
            out.say(f"{row.queue}: paused at {row.at:%Y-%m-%d %H:%M:%S} UTC by {row.by or '?'} {row.reason}".rstrip())
        if not rows:
            out.say("No queue is paused.")


@subcommand(option("names", "the name of a queue", nargs="+", metavar="QUEUE"), wish=STEER)
def resume(out: JobsCommand, args: Namespace) -> None:
    """Let the jobs of paused queues run again.

    Workers that consume them go on within a second or so.

    examples:
      manage.py jobs resume mail
    """
    done = {name: pauses.resume(name) for name in dict.fromkeys(args.names)}
    _say_switched(out, done, "resumed", "was not paused")


def _say_switched(out: JobsCommand, done: dict[str, bool], word: str, otherwise: str) -> None:
    for name, changed in done.items():
        out.say(f"{name}: {word}, {counts.ready(name)} jobs are ready" if changed else f"{name}: {otherwise}")
    paused = {name: {"at": row.at, "by": row.by, "reason": row.reason} for name, row in counts.paused().items()}
    out.say_json({"changed": [name for name, changed in done.items() if changed], "paused": paused})
