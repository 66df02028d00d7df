"""``manage.py jobs top``: the dashboard for a terminal."""

import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from jobs.conf.logs import visible
from jobs.contrib.console.base import LOOK, JobsCommand, option, subcommand
from jobs.contrib.inspection.counts import at_least
from jobs.contrib.inspection.times import duration
from jobs.contrib.inspection.view import progress_of
from jobs.contrib.operations.selection import DIGITS
from jobs.contrib.operator.figures import Dashboard
from jobs.contrib.operator.problems import sentence
from jobs.models import ENDED, LIVE

SHOWN = 5  #: How many problems get a line.
LONGEST = 86400.0  #: The most seconds between two looks.

# For a terminal: go to another screen, and back; to the first line; clear the rest of a line, and of the screen.
ENTER, LEAVE, HOME, TO_END, BELOW = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H", "\x1b[K", "\x1b[J"


@subcommand(
    option("--once", "write it once, and end", action="store_true"),
    option("--interval", "seconds between two looks (default: %(default)s)", type=float, default=2.0),
    wish=LOOK,
)
def top(out: JobsCommand, args: Namespace) -> None:
    """Watch what happens: problems, queues with their rates, what runs, and workers, again and again.

    It ends with Ctrl-C. In a pipe, and with --json, it is written once.

    examples:
      manage.py jobs top
      manage.py jobs top --interval 10
      manage.py jobs top --once
    """
    if not 0 < args.interval <= LONGEST:
        raise CommandError(f"--interval has to be above 0 seconds, and at most {LONGEST:g}.")
    if out.as_json or args.once or not out.stdout.isatty():
        board = Dashboard()
        out.say_json(as_json(board))
        if not out.as_json:
            out.stdout.write("\n".join(frame(out, board)))
        return
    with _screen(out):
        while True:
            found = frame(out, Dashboard())[: out.height - 1]
            out.stdout.write(HOME + "".join(f"{line}{TO_END}\n" for line in found) + BELOW, ending="")
            out.stdout.flush()
            time.sleep(args.interval)


@contextmanager
def _screen(out: JobsCommand) -> Iterator[None]:
    """A screen of its own, so that what was on the terminal is there again afterwards."""
    out.stdout.write(ENTER, ending="")
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        out.stdout.write(LEAVE, ending="")
        out.stdout.flush()


def frame(out: JobsCommand, board: Dashboard) -> list[str]:
    """The lines of one frame."""
    found, style = board.found, out.style
    bad = [each for each in board.problems if each.severity != "info"]
    look = style.ERROR if any(each.severity == "error" for each in bad) else style.WARNING if bad else style.SUCCESS
    says = look(visible(_cut(sentence(board.problems), out, 23)))
    lines = [f"jobs top   {timezone.localtime(board.now):%H:%M:%S}   {says}"]
    counts = [f"{at_least(found['jobs'][state], found['capped'])} {state}" for state in LIVE]
    counts += [f"{number} {state}" for state, number in board.ended().items()]
    workers = f"{sum(node['alive'] for node in found['nodes'])} of {len(found['nodes'])} workers alive"
    lines.append(
        _cut(
            f"{workers}   {', '.join(counts[:3])}   last hour: {', '.join(counts[3:])}",
            out,
        )
    )
    lines += [visible(_cut(f"  {each.text}", out)) for each in board.problems[:SHOWN]]
    if len(board.problems) > SHOWN:
        lines.append(f"  and {len(board.problems) - SHOWN} more: manage.py jobs status")
    queues = [
        [
            queue["name"] + (" (paused)" if queue["paused"] else ""),
            *(at_least(queue[state], queue["capped"]) for state in ("ready", "running", "scheduled")),
            duration(queue["oldest"]), f"{queue['in']:.1f}", f"{queue['out']:.1f}", queue["workers"],
        ]
        for queue in board.queues()
    ]  # fmt: skip
    if queues:
        head = ["queue", "ready", "running", "scheduled", "oldest", "in/min", "out/min", "workers"]
        lines += ["", *out.drawn(head, queues, fits=True).splitlines()]
    names, said = {node["id"]: node["hostname"] for node in found["nodes"]}, progress_of(board.running)
    running = [
        [
            str(job.pk)[-DIGITS:], job.task.rpartition(".")[2], duration(job.age.total_seconds()),
            names.get(str(job.node_id), "?"), str(said.get(job.pk) or "-"),
        ]
        for job in board.running
    ]  # fmt: skip
    if running:
        lines += ["", *out.drawn(["id", "running now", "for", "on", "progress"], running, fits=True).splitlines()]
    return lines


def _cut(text: str, out: JobsCommand, before: int = 0) -> str:
    most = max(20, out.width - before)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def as_json(board: Dashboard) -> dict[str, Any]:
    running = [{"id": job.pk, "task": job.task, "seconds": job.age.total_seconds()} for job in board.running]
    return {
        "problems": [each.text for each in board.problems],
        "jobs": {state: board.found["jobs"][state] for state in LIVE},
        "ended": {state: board.ended()[state] for state in ENDED},
        "queues": board.queues(),
        "running": running,
        "nodes": board.found["nodes"],
    }
