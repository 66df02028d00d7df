"""A stacked bar chart as SVG, drawn here: no library, no script, and readable without it."""

from __future__ import annotations

import datetime

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from jobs.dashboard import Chart

#: Of the drawing, in its own units.
WIDTH, HEIGHT, LEFT, BOTTOM = 800, 200, 50, 22


def draw(chart: Chart, label: str, names: dict[str, str]) -> SafeString:
    """``names``: what a series is called for people."""
    highest = max(1, chart.highest)
    base, step = float(HEIGHT - BOTTOM), (WIDTH - LEFT) / max(1, len(chart.begins))
    bars = []
    for number, begin in enumerate(chart.begins):
        y = base
        for index, (name, counts) in enumerate(chart.series.items()):
            if not counts[number]:
                continue
            height = counts[number] / highest * (base - 8)
            y -= height
            kind = name if name in STATES else index
            title = f"{_time(begin)} {names.get(name, name)}: {counts[number]}"
            bars.append((kind, _n(LEFT + number * step), _n(y), _n(step * 0.85), _n(height), title))
    rect = '<rect class="chart-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
    says = gettext("%(label)s; at most %(highest)s at a time") % {"label": label, "highest": chart.highest}
    return format_html(
        '<svg class="jobs-chart" viewBox="0 0 {} {}" role="img" aria-label="{}">'
        '<line x1="{}" y1="{}" x2="{}" y2="{}"/>{}{}</svg>',
        WIDTH, HEIGHT, says,
        LEFT, _n(base), WIDTH, _n(base),
        format_html_join("", rect, bars),
        format_html_join(
            "",
            '<text x="{}" y="{}" text-anchor="{}">{}</text>',
            [
                (LEFT - 6, 14, "end", highest),
                (LEFT - 6, HEIGHT - BOTTOM, "end", 0),
                (LEFT, HEIGHT - 6, "start", _time(chart.begins[0])),
                (WIDTH, HEIGHT - 6, "end", _time(chart.begins[-1])),
            ],
        ),
    )  # fmt: skip


STATES = ("succeeded", "failed", "cancelled")


def _time(moment: datetime.datetime) -> str:
    return f"{timezone.localtime(moment) if timezone.is_aware(moment) else moment:%Y-%m-%d %H:%M}"


def _n(value: float) -> str:
    """Never in the reader's locale."""
    return f"{value:.1f}"
