"""``manage.py jobs status``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobs.census import LIVE, gather, remarks
from jobs.commands.base import AS_JSON, Subcommand, option
from jobs.commands.text import table
from jobs.models import ENDED
from jobs.times import duration


class Status(Subcommand):
    name = "status"
    summary = "counts by state and queue, workers, the oldest ready job, the lag of the relay"
    more = (
        "Scheduled, ready and running jobs are counted through their partial indexes. Ended jobs have none: their\n"
        "count reads the whole table. --live leaves it out, for monitoring."
    )
    options = (
        AS_JSON,
        option("--live", action="store_true", help="leave out the ended jobs, whose count reads all history"),
    )
    examples = ("status", "status --live --json")

    def run(self, *, as_json: bool, live: bool, **options: Any) -> None:
        found = gather(live)
        if as_json:
            self.say_json(found)
        else:
            self.say("\n\n".join(as_text(found, self.is_terminal)))


def as_text(found: dict[str, Any], is_terminal: bool) -> Iterator[str]:
    yield table(
        [["queue", *LIVE]]
        + [[name, *(counts[state] for state in LIVE)] for name, counts in found["queues"].items()]
        + [["total", *(found["jobs"][state] for state in LIVE)]],
        is_terminal,
    )
    ended = {state: found["jobs"][state] for state in ENDED}
    if None not in ended.values():
        yield table([["ended", *ended], ["total", *ended.values()]], is_terminal)
    if found["nodes"]:
        yield nodes_table(found["nodes"], is_terminal)
    alive = sum(node["alive"] for node in found["nodes"])
    oldest = found["oldest_ready_seconds"]
    relay = found["relay"]
    lines = [
        f"workers: {alive} alive, {len(found['nodes']) - alive} silent, {found['dead_nodes']} died",
        "no job is ready" if oldest is None else f"the oldest ready job has waited {duration(oldest)}",
        f"due and not published: {relay['due']}"
        + (f", the oldest since {duration(relay['lag_seconds'])}" if relay["due"] else ""),
    ]
    yield "\n".join([*lines, *(text for _, text in remarks(found))])


def nodes_table(nodes: list[dict[str, Any]], is_terminal: bool) -> str:
    return table(
        [["worker", "host", "pid", "version", "pool", "up for", "last beat", "running", "queues"]]
        + [
            [
                n["id"][:8],
                n["hostname"],
                n["pid"],
                n["version"] or "?",
                f"{n['pool']} {n['concurrency']}" if n["pool"] else "?",
                duration(n["age_seconds"]),
                ("never" if n["beat_seconds"] is None else f"{duration(n['beat_seconds'])} ago")
                + ("" if n["alive"] else " (silent)")
                + (" (stopping)" if n["stopping"] else ""),
                n["running"],
                ", ".join(n["queues"]),
            ]
            for n in nodes
        ],
        is_terminal,
    )
