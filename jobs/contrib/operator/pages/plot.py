"""The parts of a chart of ended jobs: bars made of pieces, labels of the axis, and the counts of bars that are cut."""

import datetime
from collections.abc import Iterator
from typing import Any

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.contrib.operator.figures import Chart
from jobs.contrib.operator.statistics import HOUR
from jobs.models import State

NEAR = 0.09  #: Texts above the chart would overlap if they are closer than this fraction of its width.

LABELS = {"hour": _("last hour"), "day": _("last day"), "week": _("last week")}


def plot(chart: Chart, label: str, is_by_state: bool = True) -> dict[str, Any]:
    """The context of ``plot.html``."""
    names = {state.value: state.label for state in State} if is_by_state else {"": gettext("others")}
    # States have their own colours.
    series = [
        (name if is_by_state else number, names.get(name, name), counts)
        for number, (name, counts) in enumerate(chart.series.items())
    ]
    return {
        "chart": chart,
        "chart_label": label,
        "bars": _bars(chart, series),
        "hours": [*hours(chart.begins)],
        "cuts": _cuts(chart),
        "legend": [(look, label, sum(counts)) for look, label, counts in series],
    }


def _bars(chart: Chart, series: list[tuple[Any, Any, list[int]]]) -> Iterator[Any]:
    """For each bar: its number, its text, and its parts (look, top and height, in jobs)."""
    for number, begin in enumerate(chart.begins):
        top, parts, says = chart.top, [], [f"{timezone.localtime(begin):%Y-%m-%d %H:%M}"]
        for look, label, counts in series:
            if count := counts[number]:
                height = min(count, top)
                top -= height
                parts.append((look, top, height))
                says.append(f"{label}: {count}")
        yield number, ", ".join(says), parts


def _cuts(chart: Chart) -> list[tuple[float, str]]:
    """The places of cut bars, and their counts: if several are close together, only the highest shows its count."""
    named: list[int] = []
    for place in sorted(chart.cut, key=lambda place: -chart.cut[place]):
        if all(abs(place - other) >= NEAR * len(chart.begins) for other in named):
            named.append(place)
    return [(percent(place + 0.5, chart.begins), str(n) if place in named else "") for place, n in chart.cut.items()]


def percent(number: float, begins: list[datetime.datetime]) -> float:
    """The place of a bar, in percent of the chart's width."""
    return round(100 * number / len(begins), 2)


def hours(begins: list[datetime.datetime]) -> Iterator[tuple[float, str]]:
    """The labels of the axis, with their places: every tenth minute, every fourth hour, or every day."""
    step = begins[1] - begins[0]
    for number, begin in enumerate(map(timezone.localtime, begins)):
        if step < HOUR:
            is_round, text = begin.minute % 10 == 0, f"{begin:%H:%M}"
        elif step == HOUR:
            is_round, text = begin.hour % 4 == 0, f"{begin:%H:%M}"
        else:
            is_round, text = begin.hour < 6, date_format(begin, "D j.n.")
        if is_round:
            yield percent(number, begins), text
