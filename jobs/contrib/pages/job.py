"""The jobs: a list that stays fast with a long history, a page with all about one job, and the buttons."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import ORDER_VAR
from django.db.models import Q, QuerySet
from django.db.models.fields.json import KeyTextTransform
from django.http import Http404, HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.conf import celery_app, conf
from jobs.contrib.inspection.times import duration
from jobs.contrib.inspection.view import View, look_up, progress_of
from jobs.contrib.operations import selection
from jobs.contrib.operations.actions import OPERATIONS
from jobs.contrib.operations.selection import DIGITS, FIELDS, Selection, newest
from jobs.contrib.pages import history, html
from jobs.contrib.pages.base import SEARCHED, UncountedChangeList, may
from jobs.contrib.pages.html import NOTHING, column
from jobs.contrib.pages.operate import OperableAdmin
from jobs.contrib.passing.backoff import says_how_to_retry
from jobs.contrib.redaction.display import shown
from jobs.lifecycle.transitions import NEVER, due_at
from jobs.models import WAITING, Job, State
from jobs.models.fields import created_since
from jobs.models.values import as_uuid, scrub

ID = re.compile(r"[0-9a-f]{8,32}")  #: An id, or its first or last digits.


class StateFilter(admin.ChoicesFieldListFilter):
    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> Any:
        asked: Any = self.used_parameters.get(self.lookup_kwarg, [])
        return Selection(states=asked).narrow(queryset)


class Created(admin.SimpleListFilter):
    title = _("created")
    parameter_name = "created"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("1h", _("last hour")), ("1d", _("last day")), ("1w", _("last week"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        age = self.value()
        return queryset.filter(created_since(selection.moment(age))) if age in dict(self.lookup_choices) else queryset


class JobChangeList(UncountedChangeList):
    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        order = super().get_ordering(request, queryset)
        if request.GET.get("state__exact") == State.SCHEDULED and ORDER_VAR not in request.GET:
            # The job that is due next comes first: the index has this order.
            order = self.order = ["run_at", "pk"]
        return order

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if self.query:
            says = _("Searched: IDs, tasks; and words in errors and arguments of the newest %(number)s jobs.")
            self.search_help_text = says % {"number": f"{selection.SEARCHED:,}"}


def _badge(job: Any) -> str:
    """The state, and the progress if the body reported it."""
    said = getattr(job, "progress", None)
    bar = "" if said is None else html.progress(said.percent, said)
    return format_html("{} {}", html.state(job.state), bar) if bar else html.state(job.state)


def _when(job: Job) -> Any:
    return due_at(job) if job.state == State.SCHEDULED else job.created_at


def _took(job: Job) -> str:
    if job.started_at is None or job.state in WAITING:
        return NOTHING
    return duration(((job.finished_at or timezone.now()) - job.started_at).total_seconds())


def _fault(job: Any) -> str:
    """The last error: a list shows two lines of it, and the whole error on hover."""
    if job.state == State.SUCCEEDED or not (job.error_type or job.error_message):
        return ""
    says = ": ".join(filter(None, (str(job.error_type or ""), str(job.error_message or "").partition("\n")[0])))
    says = scrub(says, 500)
    return format_html('<span class="job-fault" title="{}">{}</span>', says, Truncator(says).chars(150))


def _as_call(job: Job) -> str:
    """The call as Python code, to paste into a shell; redacted."""
    app = celery_app()
    task = app and app.tasks.get(job.task)
    # The name of a task need not be the path of its function.
    path = job.task if task is None else f"{task.__module__}.{task.__name__}"
    module, _, name = path.rpartition(".")
    call = f"from {module} import {name}\n{name}.delay({shown(job).arguments})" if module else f"{name}.delay(...)"
    return html.preformatted(call)


@admin.register(Job)
class JobAdmin(OperableAdmin):
    actions = ()
    list_display = ("short_id", "short_task", "given", "badge", "when", "fault", "took", "attempt", "queue")
    #: All but the columns that may be large.
    list_only = (
        "id", "task", "args", "kwargs", "state", "queue", "run_at", "made_at", "started_at", "finished_at", "lease",
        "retries",
    )  # fmt: skip
    # No filter by task: to list all tasks would read the whole table.
    list_filter: ClassVar[Any] = (("state", StateFilter), Created)
    lookups = frozenset({"state__exact", *FIELDS})
    sorts = {
        "": (_("newest"), ("-pk",)),
        "oldest": (_("oldest"), ("pk",)),
        "ended": (_("ended last"), ("-finished_at", "-pk")),
    }
    search_fields = ("id", "task")
    search_help_text = _(
        "An ID (or its last 8 digits), a task or its function, a field (queue:mail), or words of an error or an "
        "argument."
    )
    change_form_template = "jobs/admin/job/change_form.html"
    relatives: ClassVar[list[Any]] = ["parent", "root_job"]
    #: All but what the head of the page already shows.
    fieldsets = (
        (_("Call"), {"fields": ("arguments", "keyword_arguments", "shown_result", "as_call", "priority")}),
        (_("Attempts"), {"fields": (("lease", "retries", "snoozes"), ("crashes", "lost"), "shown_cursor")}),
        (_("Keys"), {"fields": ("marker_key", "replayed", ("unique_key", "unique_until"))}),
        (_("Family"), {"fields": relatives}),
        (_("Options of the call"), {"fields": ("shown_options",), "classes": ("collapse",)}),
    )

    sources = {
        "arguments": "args", "keyword_arguments": "kwargs", "shown_result": "result", "shown_cursor": "cursor",
        "shown_options": "options", "lost": "node_losses", "replayed": "replay_of", "parent": "parent_id",
        "root_job": "root",
    }  # fmt: skip
    changelist = JobChangeList

    short_id = column(_("ID"), lambda job: str(job.pk)[-DIGITS:])
    badge = column(_("state"), _badge)
    short_task = html.short_task
    given = column(_("arguments"), lambda job: format_html("<code>{}</code>", html.arguments(job)))
    attempt = column(_("attempts"), lambda job: job.lease or NOTHING)
    took = column(_("duration"), _took)
    when = column(_("when"), lambda job: html.ago(_when(job)))
    fault = column(_("error"), _fault)
    arguments = column(_("arguments"), lambda job: html.pretty(shown(job).args))
    keyword_arguments = column(_("keyword arguments"), lambda job: html.pretty(shown(job).kwargs))
    shown_result = column(
        _("result"), lambda job: html.pretty(shown(job).result) if job.state == State.SUCCEEDED else NOTHING
    )
    as_call = column(_("as a call"), _as_call)
    shown_cursor = column(_("cursor"), lambda job: html.pretty(shown(job).cursor))
    lost = column(_("lost with a worker"), lambda job: job.node_losses)
    shown_options = column(_("options"), lambda job: html.pretty(shown(job).options))
    parent = column(_("parent"), lambda job: html.link_to(job, job.parent_id))
    replayed = column(_("did the work before"), lambda job: html.link_to(job, job.replay_of))
    root_job = column(_("root"), lambda job: html.link_to(job, job.root_id))

    @classmethod
    def add_relative(cls, name: str, source: str, field: Any) -> None:
        """Add an extension's field to the family; ``source`` is the attribute of the job that it shows."""
        setattr(cls, name, field)
        cls.sources[name] = source
        cls.relatives.append(name)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        # Read the error without its traceback, which may be long.
        kind, message = (KeyTextTransform(name, "error") for name in ("type", "message"))
        return super().get_queryset(request).annotate(error_type=kind, error_message=message)

    def look_at(self, rows: Iterable[Any]) -> None:
        """Add the progress of running jobs."""
        super().look_at(rows)
        running = [job for job in rows if job.state == State.RUNNING]
        found = progress_of(running)
        for job in running:
            job.progress = found.get(job.pk)

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[QuerySet[Any], bool]:
        found, has_index = self._search(queryset, term) if (term := search_term.strip()) else (queryset, True)
        if not has_index:
            # The list looks at so many jobs a page, as for a filter that has no index.
            setattr(request, SEARCHED, getattr(request, SEARCHED, queryset))
        return found, False

    def _search(self, rows: QuerySet[Any], term: str) -> tuple[QuerySet[Any], bool]:
        """Search by an id, by the end of one as the list shows it, by a field, by a task, or by words in the newest.

        False: no index finds the rows.
        """
        given = rows.filter(pk=as_uuid(term), made_at__isnull=False)  # Another program's message may have any id.
        if given.exists():
            return given, True
        digits = term.replace("-", "").lower()
        if len(digits) == DIGITS and ID.fullmatch(digits):
            return newest(rows).filter(pk__endswith=digits), True
        if ID.fullmatch(digits):
            first, last = [uuid.UUID(digits.ljust(32, digit)) for digit in "0f"]
            return rows.filter(pk=first) if first == last else rows.filter(pk__range=(first, last)), True
        name, _colon, text = term.partition(":")
        if (field := FIELDS.get(name)) is not None and text and not (field.is_secret and conf().REDACT is not None):
            try:
                return Selection.of({name: text}).narrow(rows), field.has_index
            except ValueError:
                return rows.none(), True
        names = self.known_tasks()
        if tasks := [name for name in names if name.startswith(term) or name.rpartition(".")[2] == term]:
            return rows.filter(task__in=tasks), False
        words = Q(task__icontains=term) | Q(error_type__icontains=term)
        if conf().REDACT is None:
            # A search must not reveal a redacted argument, also not by what an error says about it.
            words |= Q(error_message__icontains=term) | selection.said(term)
        return newest(rows).filter(words), True

    def known_tasks(self) -> set[str]:
        return set(getattr(celery_app(), "tasks", ()))

    def about(self, request: HttpRequest, row: Job) -> dict[str, Any]:
        if (view := look_up(row.pk)) is None:
            # Race: the job was deleted a moment ago.
            raise Http404
        _, held = view.lock or ("", None)
        return {
            "is_followed": row.finished_at is None,
            "history": history.of(row),
            "state_badge": _badge(row),
            "facts": self._facts(view),
            "operations": [
                each for each in OPERATIONS.values() if row.state in each.states and may(request, each.permission)
            ],
            "view": view,
            # The links to jobs with the same key filter by it.
            "keys": [*filter(None, dict.fromkeys((row.unique_key, row.marker_key)))] if conf().REDACT is None else [],
            "parts": html.parts("job", request, view),
            "fields": FIELDS,
            "lock_left": duration(held.left) if held is not None and held.left is not None else "",
        }

    def _facts(self, view: View) -> Iterator[str]:
        """What the head of the page says in addition to the state."""
        job = view.job
        most = view.task.max_retries if view.task is not None and says_how_to_retry(view.task) else None
        if job.lease:
            says = gettext("attempt %(number)s") if most is None else gettext("attempt %(number)s of %(all)s")
            yield says % {"number": job.retries + (job.state not in WAITING or not job.retries), "all": (most or 0) + 1}
        if job.state == State.RUNNING:
            yield gettext("runs for %(time)s") % {"time": view.ago(job.started_at)}
        elif job.started_at is not None and job.finished_at is not None:
            ran = max(0.0, (job.finished_at - job.started_at).total_seconds())
            yield gettext("ran %(time)s") % {"time": duration(ran)}
        elif job.state == State.SCHEDULED and not view.is_due and job.run_at < NEVER:
            yield gettext("due in %(time)s") % {"time": duration(-view.since(job.run_at))}
        if job.node_id is not None:
            node = view.own_worker
            known = gettext("%(id)s (no longer known)") % {"id": job.node_id}
            yield format_html("{} {}", gettext("worker"), html.link(node, "node_change", node.pk) if node else known)
        yield format_html("{} {}", gettext("queue"), html.link(job.queue, "job_changelist", queue=job.queue))
