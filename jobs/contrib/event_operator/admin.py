"""The events: those told and received, how far each is and where it led; and which handler wants which."""

import json
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobs.conf import conf
from jobs.contrib.event_operator import redaction, stages
from jobs.contrib.event_operator.replay import replay_by, services
from jobs.contrib.event_operator.store import names
from jobs.contrib.inspection.counts import MOST, at_least
from jobs.contrib.inspection.times import duration
from jobs.contrib.inspection.view import View, database_of
from jobs.contrib.operations.given import parsed
from jobs.contrib.operations.selection import DIGITS, SEARCHED, newest
from jobs.contrib.pages import history, html
from jobs.contrib.pages.base import (
    CountedChangeList,
    ReadOnlyAdmin,
    UncountedChangeList,
    apart,
    may,
    numbered,
    page,
    why_of,
)
from jobs.contrib.pages.html import column, time_column, url_of
from jobs.events.models import ARGS, TRACE, Event, Subscription
from jobs.events.relay import matches
from jobs.events.services import BrokerError
from jobs.models import Job, State
from jobs.models.values import parse_uuid, scrub

#: What the list can be filtered by: a label, and the condition. Those of ``stages.OPEN`` have an index each;
#: all other ones are looked for among the newest events.
WAYS: dict[str, tuple[Any, Q]] = {
    "unrelayed": (_("waits to be handed on"), stages.OPEN["unrelayed"]),
    "unsent": (_("waits to be published"), stages.OPEN["unsent"]),
    "parked": (_("waits for an earlier one"), stages.OPEN["parked"]),
    "problem": (_("has a problem"), stages.OPEN["problem"]),
    "sent": (_("published"), Q(sent_at__isnull=False)),
    "received": (_("received"), Q(received_at__isnull=False)),
}

#: The colours of events that are not done with: those of a job's state.
LOOKS = {"problem": "failed", "parked": "scheduled", "unrelayed": "ready", "unsent": "ready"}

NAMED = 100  #: At most this many names of events are read.


class NameFilter(admin.SimpleListFilter):
    title = _("name")
    parameter_name = "name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in names(database_of(Event), NAMED)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(name=name) if (name := self.value()) else queryset


class WayFilter(admin.SimpleListFilter):
    title = _("status")
    parameter_name = "way"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(name, label) for name, (label, condition) in WAYS.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if (way := self.value()) not in WAYS:
            return queryset
        return (queryset if way in stages.OPEN else newest(queryset)).filter(WAYS[way][1])

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Add the numbers of events that a person may have to look at."""
        found = stages.backlog(changelist.queryset.db).items()
        numbers = {name: at_least(each.number, each.number >= MOST) for name, each in found}
        return numbered(super().choices(changelist), WAYS, numbers)


class EventChangeList(UncountedChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if self.query or self.params:
            says = _("Order keys, services, and what has no number in the filter, are of the newest %(number)s events.")
            self.search_help_text = says % {"number": f"{SEARCHED:,}"}


def status(event: Event) -> str:
    """How far the event is, as a badge."""
    stage = stages.stage(event)
    refused = _("not handled") if event.received_at else _("refused")
    label = {"problem": refused, "relayed": _("handed on")}.get(stage) or WAYS[stage][0]
    return html.badge(f"job-{LOOKS.get(stage, 'succeeded')}", label)


def trace_of(event: Event) -> dict[str, Any]:
    return {name: event.headers[name] for name in TRACE if name in event.headers}


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    list_display = ("short_id", "name", "version", "status", "source", "order_key", "when")
    #: Without the data, which may be large.
    list_only = (
        "id", "uuid", "name", "version", "source", "order_key", "at", "relayed_at", "number", "sent_at", "received_at",
        "problem",
    )  # fmt: skip
    list_filter = (NameFilter, WayFilter)
    actions = ("ask",)
    lookups = frozenset({"name"})
    search_fields = ("uuid", "name")
    search_help_text = _("An ID, a name or its beginning, an order key or a service.")
    change_form_template = "jobs/admin/event/change_form.html"
    fieldsets = (
        (None, {"fields": ("problem", "shown_data", "shown_args", "told_by")}),
        (_("Moments"), {"fields": ("happened", "handed_on", "published", "received")}),
        (_("On the wire"), {"fields": ("uuid", "name", "version", "source", "order_key", "number", "trace")}),
    )

    sources = {"told_by": "job", "published": "sent_at", "received": "received_at"}
    changelist = EventChangeList

    short_id = column(_("ID"), lambda event: str(event.uuid)[-DIGITS:])
    status = column(_("status"), status)
    when = column(_("when"), lambda event: html.ago(event.at))
    shown_data = column(_("data"), lambda event: html.pretty(redaction.data_of(event)))
    shown_args = column(_("arguments"), lambda event: html.pretty(redaction.args_of(event)))
    trace = column(_("trace context"), lambda event: html.pretty(trace_of(event)))
    told_by = column(_("told by the job"), lambda event: html.link_to(event, event.job))
    happened = time_column(_("happened at"), "at")
    handed_on = time_column(_("handed on at"), "relayed_at")
    published = time_column(_("published at"), "sent_at")
    received = time_column(_("received at"), "received_at")

    def look_at(self, rows: Iterable[Any]) -> None:
        redaction.veil(rows)

    def says(self, row: Event, name: str) -> bool:
        computed = {"trace": trace_of(row), "shown_args": row.headers.get(ARGS)}
        return bool(computed[name]) if name in computed else super().says(row, name)

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """By an id, by the end of one as the list shows it, by a name; else in the newest events."""
        if (key := parse_uuid(term)) is not None:
            return rows.filter(uuid=key)
        if found := [name for name in names(rows.db, NAMED) if name.startswith(term)]:
            return rows.filter(name__in=found)
        fits = Q(source=term) | Q(uuid__endswith=term.lower())
        if conf().REDACT is None:
            # A user who may not see what a key is made of must not find it out by a search either.
            fits |= Q(order_key=term)
        return newest(rows).filter(fits)

    def about(self, request: HttpRequest, row: Event) -> dict[str, Any]:
        using: Any = row._state.db
        way = stages.way(row, using)
        return {
            "status": status(row),
            "way": _tree(row.uuid, way),
            "is_cut": way.is_cut,
            "is_followed": True,
            "actions": history.actions(row.uuid, using),
            **self._form([row]),
            "may_replay": self.has_replay_permission(request),
        }

    # The button

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return may(request, "replay_event")

    def _form(self, rows: Iterable[Event]) -> dict[str, Any]:
        keys = [str(event.uuid) for event in rows]
        return {"keys": json.dumps(keys), "number": len(keys), "services": services(database_of(Event))}

    @admin.action(description=_("Replay"), permissions=["replay"])
    def ask(self, request: HttpRequest, rows: QuerySet[Event]) -> HttpResponse:
        """Ask for the service, so that a user cannot replay to all services by mistake."""
        chosen = rows.order_by("pk")[: self.list_per_page]
        return self.render(request, "event/replay.html", gettext("Replay"), **self._form(chosen))

    @page("replay/", "event_replay", "replay_event")
    @apart
    def replay(self, request: HttpRequest) -> HttpResponse:
        try:
            asked = [uuid.UUID(str(key)) for key in parsed(request.POST.get("keys", "[]"))]
        except (TypeError, ValueError):
            raise PermissionDenied from None
        rows = list(self.get_queryset(request).filter(uuid__in=asked[: self.list_per_page]))
        back = url_of("event_change", rows[0].pk) if len(rows) == 1 else url_of("event_changelist")
        to, why = scrub(request.POST.get("to", "").strip(), 1000), why_of(request)
        by, again = request.user.get_username(), "again" in request.POST
        try:
            if not to:
                raise ValueError(gettext("Name the service."))
            if not rows:
                raise ValueError(gettext("They are gone."))
            done = replay_by(database_of(Event), [event.uuid for event in rows], to, again, by, why)
        except (ValueError, BrokerError) as exc:
            messages.error(request, str(exc))
            return HttpResponseRedirect(back)
        for event in rows:
            self.log_change(request, event, f"replay to {to} {why}".strip())
        says = gettext("%(events)s replayed: %(jobs)s jobs made, %(sent)s messages sent.")
        messages.success(request, says % done)
        return HttpResponseRedirect(back)


def _tree(key: uuid.UUID, way: stages.Way) -> list[Any]:
    """What an event, or a job, has led to, as Django's ``unordered_list`` takes it."""
    lines: list[Any] = []
    for job in way.jobs.get(key, ()):
        label = f"{job.task} {str(job.pk)[-DIGITS:]}"
        says = ngettext("%(number)s attempt", "%(number)s attempts", job.lease) % {"number": job.lease}
        shown = html.link(label, "job_change", job.pk), html.state(job.state), says
        lines += [format_html("{} {} {}", *shown), _tree(job.pk, way)]
    for told in way.events.get(key, ()):
        lines += [event_link(told), _tree(told.uuid, way)]
    return [line for line in lines if line]


def event_link(event: Event) -> str:
    label = f"{event.name} {str(event.uuid)[-DIGITS:]}"
    return format_html("{} {}", html.link(label, "event_change", event.pk), status(event))


def job_page(request: HttpRequest, view: View) -> dict[str, str]:
    """What a job told of."""
    told = stages.told_by(view.using, [view.job.pk]) if may(request, "view_event") else []
    links = format_html_join("", "<li>{}</li>", ((event_link(each),) for each in told))
    shown = "<dt>{}</dt>\n  <dd><ul>{}</ul></dd>"
    return {"related": format_html(shown, gettext("Events that it told of"), links)} if told else {}


# The subscriptions


def _told(row: Subscription) -> str:
    """The events of this database whose names fit the pattern."""
    found = [name for name in names(database_of(Event), NAMED) if matches(row.pattern, name)]
    links = ((html.link(name, "event_changelist", name=name),) for name in found)
    return format_html_join(", ", "{}", links) or html.NOTHING


def _count(row: Subscription, number: int, **query: str) -> str:
    return html.link(at_least(number, number >= MOST), "job_changelist", **query, task=row.handler)


@admin.register(Subscription)
class SubscriptionAdmin(ReadOnlyAdmin):
    list_display = ("handler", "pattern", "version", "service", "queue", "waiting", "lag", "failed", "registered")
    list_per_page = 100
    show_full_result_count = True
    changelist = CountedChangeList
    list_filter = ("service",)
    lookups = frozenset({"service"})
    search_fields = ("handler", "pattern")
    search_help_text = _("The beginning of a handler, or of the name of its events.")
    ordering = ("service", "handler")
    fields = (
        "handler", "pattern", "version", "service", "queue", "in_order", "waiting", "lag", "failed", "registered",
        "told",
    )  # fmt: skip

    lag = column(_("lag"), lambda row: duration(row.lag.seconds) if row.lag.waiting else html.NOTHING)
    waiting = column(_("waiting"), lambda row: _count(row, row.lag.waiting))
    failed = column(_("failed"), lambda row: _count(row, row.lag.failed, state__exact=State.FAILED.value))
    told = column(_("events"), _told)
    registered = time_column(_("since"), "since")

    @admin.display(description=_("in order"), boolean=True)
    def in_order(self, row: Subscription) -> bool:
        return row.is_ordered

    def look_at(self, rows: Iterable[Any]) -> None:
        """Add how late each handler is."""
        found = stages.lags(database_of(Job), [(row.handler, row.queue) for row in rows])
        for row in rows:
            row.lag = found.get(row.handler, stages.Lag())

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        return rows.filter(handler__startswith=term) | rows.filter(pattern__startswith=term)
