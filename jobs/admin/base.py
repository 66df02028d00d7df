"""What all pages share: they are for reading, lead to each other, and show times to the second."""

import datetime
import json
import uuid
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import label_for_field
from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR, ChangeList
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db import connections, transaction
from django.db.models import Model, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from jobs.arguments import scrub
from jobs.inspection.times import duration
from jobs.models import Event, Job, State
from jobs.operations.redaction import Shown
from jobs.operations.selection import DIGITS

NOTHING = "-"  #: What stands for a value that is not there.
LAST = "last"  #: In the URL, beside ``after,...`` and ``before,...``: the page with the oldest rows.


class UncountedChangeList(ChangeList):
    """It never counts its table, and its last page is as fast as the first: a page begins where another ends."""

    model_admin: Any
    #: For the template, which pages by links to the next and the previous page.
    is_uncounted = True

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Only an order that an index has: any other one would sort the whole table."""
        sorts = self.model_admin.sorts
        self.order: list[str] = [*sorts.get(request.GET.get(ORDER_VAR, ""), sorts[""])[1]]
        return self.order

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        rows = super().get_queryset(request, *args, **kwargs)
        # Rows without such a moment have no place in its order.
        rows = rows.filter(**{f"{name.lstrip('-')}__isnull": False for name in self.order[:-1]})
        return rows.only(*self.model_admin.list_only) if self.model_admin.list_only else rows

    def choices(self) -> list[tuple[Any, str, bool]]:
        """The orders: the label, the link, and whether the list is in this one."""
        now = self.params.get(ORDER_VAR, "")
        return [
            # None takes a parameter away. Django's ``remove`` would take all that begin so: ``parent`` for ``p``.
            (label, self.get_query_string({ORDER_VAR: name or None, PAGE_VAR: None}), name == now)
            for name, (label, _) in self.model_admin.sorts.items()
            if label
        ]

    def get_results(self, request: HttpRequest) -> None:
        size = self.list_per_page
        way, _, cursor = request.GET.get(PAGE_VAR, "").partition(",")
        if way not in (("after", "before") if cursor else ("", LAST)):
            raise IncorrectLookupParameters
        is_back = way in ("before", LAST)
        rows = self.queryset.reverse() if is_back else self.queryset
        page = list((rows.filter(self._beyond(cursor, is_back)) if cursor else rows)[: size + 1])
        if cursor and len(page) <= (size if is_back else 0):
            # The first page, which newer rows may have shifted; or the row of the cursor is gone.
            way, is_back, page = "", False, list(self.queryset[: size + 1])
        is_more = len(page) > size
        self.result_list = page[:size][::-1] if is_back else page[:size]
        has_older = bool(page) and (way == "before" or (is_more and not is_back))
        has_newer = way == "after" or (is_back and is_more)
        pages: dict[str, str | None] = {}
        if has_older:
            pages |= {"next_page": f"after,{self.result_list[-1].pk}", "last_page": LAST}
        if has_newer:
            pages |= {"previous_page": f"before,{self.result_list[0].pk}", "first_page": None}
        #: For the template: the links to other pages.
        self.pages = {name: self.get_query_string({PAGE_VAR: place}) for name, place in pages.items()}
        # Equal counts keep "N results" out of the search form, and those of the page Django's offer to choose all
        # pages out of the actions. The paginator knows as much as was read, for themes with templates of their own.
        self.result_count = self.full_result_count = len(self.result_list)
        self.paginator = Paginator(self.queryset, size)
        self.paginator.count = self.result_count
        self.multi_page = has_older or has_newer
        self.show_full_result_count = self.can_show_all = False
        self.show_admin_actions = True

    def _beyond(self, cursor: str, is_back: bool) -> Q:
        """The rows that come after the one of the cursor, or, on the way back, before it."""
        *names, pk = self.order
        than = "lt" if pk.startswith("-") != is_back else "gt"
        try:
            key = self.opts.pk.to_python(cursor)
        except ValidationError as exc:
            raise IncorrectLookupParameters from exc
        beyond = Q((f"pk__{than}", key))
        for name in (name.lstrip("-") for name in names):
            # As the database has it: SQLite compares texts, of more or fewer digits.
            at = Subquery(self.model._default_manager.filter(pk=key).values(name))
            # The first condition is the index's; the others decide among rows of one moment.
            beyond = Q((f"{name}__{than}e", at)) & (Q((f"{name}__{than}", at)) | beyond)
        return beyond


def whether(title: Any, without: Any, given: Any) -> type[admin.EmptyFieldListFilter]:
    """A filter of a column that is null or not, in words."""

    class Whether(admin.EmptyFieldListFilter):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.title = title

        def choices(self, changelist: Any) -> Iterator[Any]:
            every, *found = super().choices(changelist)
            yield every
            yield from ({**each, "display": label} for each, label in zip(found, (without, given), strict=True))

    return Whether


class ReadOnlyAdmin(admin.ModelAdmin):
    """The view permission suffices, and nobody edits a field: so Django shows all of them as text."""

    #: What the URL may ask for. With Django's own rule it could find out any value, also of redacted fields.
    lookups: frozenset[str] = frozenset()
    #: What ``?o=`` may ask for: a label, and an order that an index has. The first one is the default.
    sorts: ClassVar[dict[str, tuple[Any, tuple[str, ...]]]] = {"": ("", ("-pk",))}
    #: The columns that the list reads; all if none is named.
    list_only: tuple[str, ...] = ()

    actions: Any = None
    list_per_page = 50
    list_max_show_all = 0
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    sortable_by = ()
    # By name, because a project may give the app another label.
    change_list_template = "jobs/admin/change_list.html"
    change_form_template: ClassVar[Any] = "jobs/admin/change_form.html"

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        names = {field.name for field in self.opts.get_fields()}
        return lookup in self.lookups or lookup.partition("__")[0] not in names

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return UncountedChangeList

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        # On a phone a row is a card, and each of its values has its column's name before it.
        labels = [(name, label_for_field(name, self.model, self)) for name in self.list_display[1:]]
        return super().changelist_view(request, {"labels": labels, **(extra_context or {})})

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        return self.search(queryset, term) if term else queryset, False

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Only conditions that an index answers: nothing that starts with a wildcard."""
        return rows

    def path(self, route: str, name: str, view: Callable[..., Any], posts: bool = False) -> Any:
        """The path of a page beside Django's own, or of what a button ``posts`` to; for who may view the model."""

        @wraps(view)
        def allowed(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if not self.has_view_permission(request):
                raise PermissionDenied
            return view(request, *args, **kwargs)

        page = self.admin_site.admin_view(require_POST(allowed) if posts else allowed)
        return path(route, page, name=f"{self.opts.app_label}_{name}")

    def render(self, request: HttpRequest, template: str, title: str, **context: Any) -> TemplateResponse:
        shared = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media, "title": title}
        return TemplateResponse(request, f"jobs/admin/{template}", {**shared, **context})


def apart(view: Any) -> Any:
    """Each job in a transaction of its own, also with ATOMIC_REQUESTS: rows of jobs must not stay locked for long."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def may(request: HttpRequest, codename: str) -> bool:
    """Whether somebody has a permission of this app, whatever label the project gave it."""
    return bool(request.user.has_perm(f"{Job._meta.app_label}.{codename}"))


# Columns of lists, and fields of pages


def column(description: Any, show: Callable[[Any], Any]) -> Any:
    """What ``show`` makes of a row."""
    return admin.display(lambda admin, row: show(row), description=description)


#: Of a job, or of an entry of the schedule: the function, and the whole name on hover.
short_task = column(
    _("task"), lambda row: format_html('<span title="{}">{}</span>', row.task, row.task.rpartition(".")[2])
)


def time_column(description: Any, name: str) -> Any:
    return column(description, lambda row: time_tag(getattr(row, name)))


def time_tag(value: datetime.datetime | None) -> str:
    """In the reader's time zone, to the second, and exactly on hover; Django's own format leaves the seconds out."""
    if value is None:
        return NOTHING
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    html = '<time datetime="{0}" title="{0}"><span>{1}</span> <span>{2}</span></time>'
    return format_html(html, local.isoformat(), f"{local:%Y-%m-%d}", f"{local:%H:%M:%S}")


def ago_tag(value: datetime.datetime | None) -> str:
    """How long ago, or in what time; and exactly on hover."""
    if value is None:
        return NOTHING
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    seconds = (timezone.now() - (value if timezone.is_aware(value) else timezone.make_aware(value))).total_seconds()
    says = gettext("%(time)s ago") if seconds >= 0 else gettext("in %(time)s")
    return format_html(
        '<time datetime="{0}" title="{0}">{1}</time>', local.isoformat(), says % {"time": duration(abs(seconds))}
    )


def badge(look: str, label: Any) -> str:
    return format_html('<span class="job-state {}">{}</span>', look, label)


def pretty(value: Any) -> str:
    return preformatted(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def arguments(job: Job, length: int = 80) -> str:
    """Of the call, in one line; with what people may not see left out."""
    seen = Shown(job)
    given = [*map(_brief, seen.args), *(f"{name}={_brief(value)}" for name, value in seen.kwargs.items())]
    return Truncator(scrub(", ".join(given), 1000)).chars(length)


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def preformatted(text: str) -> str:
    return format_html('<pre class="job-json">{}</pre>', scrub(text, 100_000))


def url_of(page: str, *args: Any) -> str:
    """``job_change``, and the job's key; whatever label the project gave the app."""
    return reverse(f"admin:{Job._meta.app_label}_{page}", args=args)


def link(row: Model, key: uuid.UUID | None) -> str:
    """The other job that a row names, if it is (still) one of ours."""
    if key is None:
        return NOTHING
    if key == row.pk:
        return gettext("this job")
    other = Job.objects.using(row._state.db).filter(pk=key).only("id", "task", "state").first()
    if other is None:
        event = Event.objects.using(row._state.db).filter(uuid=key).only("id", "uuid", "name").first()
        if event is not None:
            label = gettext("the event %(name)s") % {"name": event.name}
            return format_html('<a href="{}">{} {}</a>', url_of("event_change", event.pk), label, key)
        return gettext("%(id)s (not a job here, or deleted)") % {"id": key}
    html = '<a href="{}">{} {}</a> ({})'
    return format_html(html, url_of("job_change", key), other.task, key, State(other.state).label)


def link_in_list(key: uuid.UUID | None) -> str:
    if key is None:
        return NOTHING
    return format_html('<a href="{}">{}</a>', url_of("job_change", key), str(key)[-DIGITS:])
