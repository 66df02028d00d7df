"""The page of a task and that of a queue: what became of its jobs over time."""

from collections.abc import Callable, Sequence
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.contrib.inspection import counts
from jobs.contrib.inspection.counts import at_least
from jobs.contrib.inspection.times import duration
from jobs.contrib.operator.figures import FAILURES, Course, by_error
from jobs.contrib.operator.pages.plot import LABELS, percent, plot
from jobs.contrib.operator.statistics import spent
from jobs.contrib.operator.status import IDLE, Live
from jobs.contrib.pages import html
from jobs.contrib.pages.base import ReadOnlyAdmin, page
from jobs.models import LIVE, State

#: A line: its label, its value in each bar, and a function that writes a value as text.
Line = tuple[str, Sequence[float | None], Callable[[float | None], str]]

#: The drawings of how long jobs ran and waited: the title, and for each line the percentile and its label.
TIMES = {
    "ran": (_("How long they ran"), ((0.5, _("ran, median")), (0.95, _("ran, 95 %")))),
    "waited": (_("How long they waited"), ((0.5, _("waited, median")), (0.95, _("waited, 95 %")))),
}


class CoursePages(ReadOnlyAdmin):
    @page("task/", "task", posts=False)
    def task_page(self, request: HttpRequest) -> HttpResponse:
        return self._course(request, "task", "ran", "waited")

    @page("queue/", "queue", posts=False)
    def queue_page(self, request: HttpRequest) -> HttpResponse:
        return self._course(request, "queue", "waited")

    def _course(self, request: HttpRequest, kind: str, *which: str) -> HttpResponse:
        name = request.GET.get("name", "")
        if not name or "\0" in name:
            raise Http404
        course = Course(request.GET.get("span", "hour"), **{kind: name})
        drawings: list[tuple[str, list[Line]]] = [
            (str(title), [(str(label), course.times(what, part), spent) for part, label in parts])
            for what in which
            for title, parts in [TIMES[what]]
        ]
        if kind == "queue":
            says = gettext("how many waited, on average")
            drawings.insert(0, (capfirst(says), [(says, course.waiting(), _number)]))
        lines = [line for _title, drawing in drawings for line in drawing]
        failures = by_error([], course.rows)
        said = {"name": name, "span": LABELS[course.span.name]}
        title = gettext("The task %(name)s") if kind == "task" else gettext("The queue %(name)s")
        return self.render(
            request,
            "course.html",
            title % said,
            name=name,
            kind=kind,
            now=_now(name) if kind == "queue" else [],
            span=course.span.name,
            spans=LABELS.items(),
            **plot(course.chart(), gettext("Ended jobs of %(name)s, %(span)s") % said),
            drawings=[_drawing(each, drawing, course) for each, drawing in drawings],
            deploys=[(_place(course, at), version, html.time(at)) for at, version in course.deploys()],
            table=_table(course, lines),
            columns=[label for label, _values, _says in lines],
            failures=failures[:FAILURES],
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}" if value < 1 else f"{value:.1f}"


def _now(queue: str) -> list[tuple[str, Any, Any, str]]:
    """What is in a queue now, and which workers consume it: the tiles of its page."""
    found = Live().queues.get(queue, IDLE)
    jobs = {str(state): html.url_of("job_changelist", state__exact=state, queue=queue) for state in LIVE}
    workers = sum(node.takes_jobs and queue in node.queues for node in counts.workers())
    tiles: list[tuple[str, Any, Any, str]] = [
        (state, State(state).label, at_least(found[state], found["capped"]), url) for state, url in jobs.items()
    ]
    tiles.append(("ready", gettext("Oldest ready"), duration(found["oldest_ready_seconds"]), jobs["ready"]))
    tiles.append(("cancelled" if workers else "failed", gettext("Workers"), workers, html.url_of("node_changelist")))
    return tiles


def _place(course: Course, at: Any) -> float:
    whole = course.span.bar * course.span.bars
    return round(100 * ((at - course.begins[0]) / whole), 2)


def _drawing(title: str, lines: list[Line], course: Course) -> dict[str, Any]:
    """Lines on one scale, in percent of its width and of its highest value; bars without ended jobs have no point."""
    top = max((value for _, values, _ in lines for value in values if value is not None), default=0.0)
    drawn = []
    for label, values, says in lines:
        points: list[str] = []
        parts = []
        for number, value in enumerate(values):
            if value is None:
                parts.append(points)
                points = []
            else:
                points.append(f"{percent(number + 0.5, course.begins)},{round(100 - 95 * value / (top or 1), 2)}")
        last = next((value for value in reversed(values) if value is not None), None)
        drawn.append((label, [each for each in (*parts, points) if each], says(last)))
    return {"top": lines[0][2](top), "lines": drawn, "is_empty": not top, "label": title}


def _table(course: Course, lines: list[Line]) -> list[tuple[str, int, list[tuple[str, str]]]]:
    """The same as numbers, the newest first: for readers who cannot use a drawing."""
    counts = [sum(each) for each in zip(*course.chart().series.values(), strict=True)] or [0] * len(course.begins)
    rows = [
        (html.time(at), count, [(label, says(values[n])) for label, values, says in lines])
        for n, (at, count) in enumerate(zip(course.begins, counts, strict=True))
        if count
    ]
    return rows[::-1]
