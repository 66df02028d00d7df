"""``manage.py jobs status``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobs.census import LIVE, at_least, gather, remarks
from jobs.commands.base import AS_JSON, Subcommand, option
from jobs.commands.text import table
from jobs.models import ENDED, State
from jobs.times import duration


class Status(Subcommand):
    name = "status"
    summary = "counts by state and queue, workers, the oldest ready job, what is overdue"
    more = (
        "Of a long backlog 10,000 jobs a queue are counted: 10000+. The count of ended jobs reads the whole table.\n"
        "--live leaves it out, for monitoring."
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
        + [[name, *_counts(queue, queue["capped"])] for name, queue in found["queues"].items()]
        + [["total", *_counts(found["jobs"], found["capped"])]],
        is_terminal,
    )
    ended = {state: found["jobs"][state] for state in ENDED}
    if None not in ended.values():
        yield table([["ended", *ended], ["total", *ended.values()]], is_terminal)
    if found["nodes"]:
        yield nodes_table(found["nodes"], is_terminal)
    alive = sum(node["alive"] for node in found["nodes"])
    oldest = found["oldest_ready_seconds"]
    lines = [
        f"workers: {alive} alive, {len(found['nodes']) - alive} silent, {found['dead_nodes']} died in the last day",
        "no job is ready" if oldest is None else f"the oldest ready job has waited {duration(oldest)}",
    ]
    yield "\n".join([*lines, *(text for _, text in remarks(found))])


def _counts(found: dict[str, Any], capped: bool) -> list[str]:
    return [at_least(found[state], capped and state != State.RUNNING) for state in LIVE]


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
