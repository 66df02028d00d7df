"""What came of a run: lines for people, a table and a chart over the number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.chart import Bar, draw
from benchmarks.samples import Spread

#: What breaks the promise.
BROKEN = ("lost", "twice", "of_nothing", "open", "rules_broken", "failures")


def is_broken(found: dict[str, Any]) -> bool:
    return any(found[name] for name in BROKEN)


def lines(found: dict[str, Any]) -> str:
    faults = ", ".join(f"{count} {name}" for name, count in found["faults"].items()) or "none"
    return "\n".join(
        [
            f"{found['nodes']} nodes, {found['processes']} processes, {found['seconds']:g} s, seed {found['seed']}",
            f"  faults: {faults}",
            f"  jobs: {found['jobs']}, effects lost: {found['lost']}, twice: {found['twice']}, "
            f"of a call that rolled back: {found['of_nothing']}; not ended: {found['open']}, failed: {found['failed']}",
            f"  rules of verify that are broken: {found['rules_broken'] or 'none'}; "
            f"threads that ended: {len(found['failures'])}",
            f"  rescues of runs whose process was killed: {found['rescues']}, the longest after "
            f"{found['longest_rescue']} s, half of them within {found['median_rescue']} s",
            f"  in a second: {found['statements']} statements, {found['notified']} notifications "
            f"({found['heard']} heard), {found['woken']} processes woken",
            f"  connections: {found['connections']}; CPUs of the server: {found['server_cpu']}",
            f"  digest {found['digest']}; {found['speed']} times as fast as time",
        ]
    )


def table(found: Sequence[dict[str, Any]]) -> str:
    head = "nodes", "processes", "connections", "statements/s", "of them per node", "notifications/s", "heard/s"
    head = *head, "processes woken/s", "CPUs of the server", "lost, twice"
    rows = [
        (
            each["nodes"],
            each["processes"],
            each["connections"],
            each["statements"],
            round(each["statements"] / each["nodes"], 1),
            each["notified"],
            each["heard"],
            each["woken"],
            f"{each['server_cpu']:.2f}",
            f"{each['lost']}, {each['twice']}",
        )
        for each in found
    ]
    marks = "|".join(["---:"] * len(head))
    return "\n".join([f"| {' | '.join(map(str, row))} |" for row in [head]] + [f"|{marks}|"]
                     + [f"| {' | '.join(map(str, row))} |" for row in rows])  # fmt: skip


def chart(found: Sequence[dict[str, Any]]) -> str:
    """Statements in a second, by the number of nodes."""
    sizes = [(f"{each['nodes']} nodes", each["statements"]) for each in found]
    bars = [Bar(name, Spread(value, value, value, 1), is_ours=True) for name, value in sizes]
    return draw("Statements in a second, by the number of nodes", "of the whole cluster; fewer are better", bars, 0)
