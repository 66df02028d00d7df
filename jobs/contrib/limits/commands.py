"""``manage.py jobs limit``."""

from __future__ import annotations

from argparse import Namespace

from django.core.management.base import CommandError

from jobs.contrib.console.base import REASON, STEER, JobsCommand, me, option, reported, subcommand
from jobs.contrib.console.change import warn_of_unknown
from jobs.contrib.limits import limits
from jobs.contrib.limits.limits import name_of
from jobs.contrib.limits.usage import usage
from jobs.contrib.operations.selection import one_task


@subcommand(
    option("queue", "the name of a queue", nargs="?", metavar="QUEUE"),
    option("--task", "of a task, instead of a queue", metavar="TASK"),
    option("--concurrency", "at most so many run at once", type=int, metavar="N"),
    option("--rate", "at most so many start in a time: 10/s, 100/m, 5000/h; 0: as many as there are", metavar="RATE"),
    option("--clear", "what was set here holds no longer, but the settings and the code", action="store_true"),
    REASON,
    wish=STEER,
)
def limit(out: JobsCommand, args: Namespace) -> None:
    """Set how many jobs of a queue or a task run at once, or start in a time, over all workers.

    Workers heed it within a second or so; what runs goes on. It wins over JOBS["QUEUES"] and the task's options,
    and survives restarts. Without a name: the limits that hold.

    examples:
      manage.py jobs limit
      manage.py jobs limit mail --concurrency 3 --rate 100/m
      manage.py jobs limit --task shop.tasks.sync --concurrency 1
      manage.py jobs limit mail --clear
    """
    given = [args.concurrency is not None or args.rate is not None, args.clear]
    if args.queue is not None or args.task is not None:
        if given.count(True) != 1 or (args.queue is None) == (args.task is None):
            raise CommandError("Name a queue or a --task, and say --concurrency, --rate or both, or --clear.")
        if args.queue is not None and not args.clear:
            warn_of_unknown(out, [args.queue])
        with reported():
            name = one_task(args.task) if args.task is not None else name_of(args.queue)
            # A value that is not given stays as it was set.
            before = (None, None) if args.clear else limits.read().get(name, (None, None))
            concurrency = before[0] if args.concurrency is None else args.concurrency
            rate = before[1] if args.rate is None else args.rate
            limits.set_by_hand(name, concurrency, rate, me(), args.reason)
    elif any(given):
        raise CommandError("Name a queue, or a --task.")
    found = usage()
    out.say_json(found)
    for row in found:
        words = [f"{row['concurrency']} at once ({row['running']} run)"] if row["concurrency"] else []
        words += [row["rate"]] if row["rate"] else []
        words += [f"for every {row['per']}"] if words and row["per"] else []
        words = (words or ["no limit"]) + (["set by hand"] if row["by_hand"] else [])
        out.say(f"{row['kind']} {row['name']}: {', '.join(map(str, words))}")
    if not found:
        out.say("No limit holds.")
