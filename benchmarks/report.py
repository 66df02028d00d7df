"""The report: a table of the goals, a table for each figure, the charts, and all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.chart import Bar, draw
from benchmarks.figures import FIGURES, Column, Figure
from benchmarks.goals import Verdict
from benchmarks.peers import PEERS
from benchmarks.samples import Samples, Spread


@dataclass(frozen=True)
class Report:
    at: str
    is_quick: bool
    rounds: int
    minutes: float
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    figures: list[str]
    samples: Samples

    def verdicts(self) -> list[Verdict]:
        return [goal.verdict(self.samples) for name in self.figures for goal in FIGURES[name].goals]

    @property
    def is_good(self) -> bool:
        """Whether every goal that was measured is met, and none of our own peers failed."""
        ours_failed = any(errors and is_ours(peer) for (_, peer), errors in self.samples.errors.items())
        return not ours_failed and all(verdict.is_met is not False for verdict in self.verdicts())

    def as_dict(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "quick": self.is_quick,
            "rounds": self.rounds,
            "minutes": round(self.minutes, 1),
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "goals": [
                {
                    "figure": verdict.goal.figure,
                    "key": verdict.goal.key,
                    "says": verdict.goal.says,
                    "unit": verdict.goal.unit,
                    "sign": verdict.sign,
                    "limit": verdict.limit,
                    "value": verdict.value,
                    "values": verdict.values,
                    "met": verdict.is_met,
                    "margin": verdict.margin,
                }
                for verdict in self.verdicts()
            ],
            "figures": {name: self._figure(FIGURES[name]) for name in self.figures},
        }

    def _figure(self, figure: Figure) -> dict[str, Any]:
        found: dict[str, Any] = {"title": figure.title, "about": figure.about, "peers": {}}
        for peer in self._peers(figure):
            values = {column.key: self.samples.spread(figure.name, peer, column.key) for column in figure.columns}
            found["peers"][peer] = {
                "about": PEERS[peer].about,
                "values": {key: asdict(spread) for key, spread in values.items() if spread},
                "errors": self.samples.errors.get((figure.name, peer), []),
            }
        return found

    def _peers(self, figure: Figure) -> list[str]:
        found = self.samples.peers(figure.name)
        return [name for name in PEERS if name in found]

    def charts(self) -> Iterator[tuple[str, str]]:
        """The files by name, with their content."""
        for name in self.figures:
            figure = FIGURES[name]
            for column in figure.columns:
                if column.is_drawn and (bars := self._bars(figure, column)):
                    note = f"{column.better} is better; median and range of the rounds"
                    drawn = draw(f"{figure.title}: {column.title}", note, bars, column.digits)
                    yield file_name(figure, column), drawn

    def _bars(self, figure: Figure, column: Column) -> list[Bar]:
        spreads = {peer: self.samples.spread(figure.name, peer, column.key) for peer in self._peers(figure)}
        found = [Bar(peer, spread, is_ours(peer)) for peer, spread in spreads.items() if spread]
        return sorted(found, key=lambda bar: bar.spread.middle, reverse=column.better == "more")

    def as_markdown(self) -> str:
        return "\n".join(self._lines()).rstrip() + "\n"

    def _lines(self) -> Iterator[str]:
        machine = self.machine
        yield "# What jobs cost, beside what others do\n"
        yield (
            f"{self.at}, {machine['cores']} cores of {machine['cpu']}, {machine['memory_gb']} GB, {machine['system']}; "
            f"a commit waits {machine['sync_us']} µs for the disk"
            f"{', and 2 ms more' if machine.get('has_slow_commits') else ''}. "
            f"{'A quick run, which only shows that it works. ' if self.is_quick else ''}"
            f"{self.rounds} {'round' if self.rounds == 1 else 'rounds'} in {self.minutes:.0f} minutes; "
            f"the load before it was {machine['load_before']}.\n"
        )
        yield ", ".join(f"{name} {version}" for name, version in self.versions.items()) + "\n"
        yield "Medians of the rounds [least to most]. *ours* is our own figure, as a multiple of the one in its row.\n"
        yield from self._goal_lines()
        for name in self.figures:
            yield from self._figure_lines(FIGURES[name])

    def _goal_lines(self) -> Iterator[str]:
        yield "## Goals\n"
        yield "| goal | at | measured | |"
        yield "|---|---|---|---|"
        for verdict in self.verdicts():
            goal = verdict.goal
            unit = "" if goal.unit == "x" else " "
            measured = "-"
            if verdict.value is not None:
                measured = f"{verdict.value:,.2f}{unit}{goal.unit}"
                if len(verdict.values) > 1:
                    measured += f" [{min(verdict.values):,.2f} to {max(verdict.values):,.2f}]"
            margin = f"**{verdict.margin}**" if verdict.is_met is False else verdict.margin
            yield f"| {goal.says} | {verdict.sign} {verdict.limit:g}{unit}{goal.unit} | {measured} | {margin} |"
        yield ""

    def _figure_lines(self, figure: Figure) -> Iterator[str]:
        peers = self._peers(figure)
        yield f"## {figure.title}\n\n{figure.about}\n"
        if not peers:
            yield "Not measured.\n"
            return
        columns = [
            column
            for column in figure.columns
            if any(self.samples.spread(figure.name, peer, column.key) for peer in peers)
        ]
        if columns:
            yield f"| | {' | '.join(column.title for column in columns)} |"
            yield f"|---|{'---|' * len(columns)}"
        for peer in peers if columns else ():
            cells = [self._cell(figure, peer, column) for column in columns]
            if not any(cells):
                cells[:1] = [f"**{self.samples.errors[figure.name, peer][-1]}**"]
            about = f" ({PEERS[peer].about})" if PEERS[peer].about else ""
            yield f"| {f'**{peer}**' if is_ours(peer) else peer}{about} | {' | '.join(cells)} |"
        yield ""
        for peer in peers:
            errors = self.samples.errors.get((figure.name, peer), [])
            for error in dict.fromkeys(errors):
                yield f"* {peer}, {errors.count(error)} of the cells: {error}"
        yield ""
        for column in columns:
            if column.is_drawn:
                yield f"![{figure.title}: {column.title}]({file_name(figure, column)})"
        yield ""

    def _cell(self, figure: Figure, peer: str, column: Column) -> str:
        spread = self.samples.spread(figure.name, peer, column.key)
        if spread is None:
            return ""
        text = as_text(spread, column.digits)
        reference = "jobs-sqlite" if PEERS[peer].database == "sqlite" else "jobs"
        if column.is_drawn and peer != reference:
            mine, other = (self.samples.rounds(figure.name, name, column.key) for name in (reference, peer))
            if ratios := [mine[each] / other[each] for each in mine.keys() & other.keys() if other[each] > 0]:
                text += f" · ours {median(ratios):.2f}x"
        return text


def is_ours(peer: str) -> bool:
    return peer.partition("-")[0] == "jobs"


def file_name(figure: Figure, column: Column) -> str:
    return f"{figure.name}-{column.key.replace('_', '-')}.svg"


def as_text(spread: Spread, digits: int) -> str:
    text = f"{spread.middle:,.{digits}f}"
    if spread.rounds > 1:
        text += f" [{spread.least:,.{digits}f} to {spread.most:,.{digits}f}]"
    return text


def write(report: Report, directory: Path) -> None:
    """Write the files, and remove those of an earlier run."""
    directory.mkdir(parents=True, exist_ok=True)
    for chart in directory.glob("*.svg"):
        chart.unlink()
    (directory / "results.md").write_text(report.as_markdown())
    (directory / "results.json").write_text(json.dumps(report.as_dict(), indent=1, ensure_ascii=False) + "\n")
    for name, drawn in report.charts():
        (directory / name).write_text(drawn)
