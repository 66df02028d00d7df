"""What all admin pages share. They only show rows: no field can be edited."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from inspect import getfile
from pathlib import Path
from typing import Any, ClassVar

from asgiref.sync import iscoroutinefunction
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import label_for_field
from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR, ChangeList
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db import connections, transaction
from django.db.models import Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.template import TemplateDoesNotExist, engines
from django.template.backends.django import DjangoTemplates
from django.template.loader import get_template
from django.template.response import TemplateResponse
from django.urls import path
from django.views.decorators.http import require_POST

from jobs.conf import conf
from jobs.contrib.inspection.view import database_of
from jobs.contrib.pages.html import SITE, label_of
from jobs.contrib.redaction.display import veil
from jobs.models.values import scrub

#: How many rows a page looks at if its filters have no index; the next page continues. It takes up to 100 ms.
LOOKED_AT = 10_000

#: The attribute of a request whose filters have no index: the queryset without these filters.
SEARCHED = "jobs_searched"

LAST = "last"  #: In the URL, beside ``after,...`` and ``before,...``: the page with the oldest rows.


class CountedChangeList(ChangeList):
    """Django's own, for a small table."""

    model_admin: Any

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.model_admin.look_at(self.result_list)


class UncountedChangeList(ChangeList):
    """A list that never counts its table. A page begins where another ends: the last page is as fast as the first."""

    model_admin: Any
    #: The template reads it, and shows links to the next and the previous page instead of numbers.
    is_uncounted = True

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Allow only orders that an index has: any other would sort the whole table."""
        sorts = self.model_admin.sorts
        self.order: list[str] = [*sorts.get(request.GET.get(ORDER_VAR, ""), sorts[""])[1]]
        return self.order

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        rows = super().get_queryset(request, *args, **kwargs)
        rows = self._in_index(rows)
        return rows.only(*self.model_admin.list_only) if self.model_admin.list_only else rows

    def choices(self) -> list[tuple[Any, str, bool]]:
        """For the template, each order of the list: its label, its link, and whether it is the present one."""
        now = self.params.get(ORDER_VAR, "")
        return [
            # None removes a parameter. Django's ``remove`` removes all that begin so: with ``p`` also ``parent``.
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
        #: The last row that this page looks at, if its filters have no index and it does not reach the end.
        self.looked_at = self._reach(request, cursor, is_back)
        page = self._page(cursor, is_back, size + 1)
        # The rest of a search may have no row that fits: then the page is empty, and the search has ended.
        is_rest = not is_back and getattr(request, SEARCHED, None) is not None
        if cursor and not self.looked_at and not is_rest and len(page) <= (size if is_back else 0):
            # The cursor's row is gone; or this is the first page, which newer rows may have shifted.
            way, is_back, page = "", False, self._page("", False, size + 1)
        is_more = len(page) > size
        self.result_list = page[:size][::-1] if is_back else page[:size]
        keys = [row.pk for row in self.result_list]
        if is_more:
            self.looked_at = None
        ahead = keys[0 if is_back else -1] if is_more else self.looked_at and self.looked_at[0]
        behind = keys[-1 if is_back else 0] if keys and way in ("before", "after") else None
        older, newer = (behind, ahead) if is_back else (ahead, behind)
        pages: dict[str, str | None] = {}
        if older:
            pages |= {"next_page": f"after,{older}", "last_page": LAST}
        if newer:
            pages["previous_page"] = f"before,{newer}"
        if newer or way == "after":
            pages["first_page"] = None
        #: The template shows these links to other pages.
        self.pages = {name: self.get_query_string({PAGE_VAR: place}) for name, place in pages.items()}
        # Two equal counts keep "N results" out of the search form. Being the page's own, they also keep Django from
        # offering to choose the rows of all pages. Themes with templates of their own read the paginator.
        self.result_count = self.full_result_count = len(self.result_list)
        self.paginator = Paginator(self.queryset, size)
        self.paginator.count = self.result_count
        self.multi_page = bool(pages)
        self.show_full_result_count = self.can_show_all = False
        self.show_admin_actions = True
        self.model_admin.look_at(self.result_list)

    def _in_index(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Leave out rows without a value in the columns of the order: its index does not have them."""
        return rows.filter(**{f"{name.lstrip('-')}__isnull": False for name in self.order[:-1]})

    def _page(self, cursor: str, is_back: bool, number: int) -> list[Any]:
        rows = self._from(self.queryset, cursor, is_back)
        if self.looked_at:
            rows = rows.filter(self._beyond(self.looked_at[1], not is_back))
        return list(rows[:number])

    def _from(self, rows: QuerySet[Any], cursor: Any, is_back: bool) -> QuerySet[Any]:
        rows = rows.reverse() if is_back else rows
        return rows.filter(self._beyond(cursor, is_back)) if cursor else rows

    def _reach(self, request: HttpRequest, cursor: str, is_back: bool) -> list[Any] | None:
        """The keys of the last row that a page looks at, and of the row behind it."""
        if (every := getattr(request, SEARCHED, None)) is None:
            return None
        rows = self._from(self._in_index(every).order_by(*self.order), cursor, is_back).values_list("pk", flat=True)
        found = list(rows[LOOKED_AT - 1 : LOOKED_AT + 1])
        return found if len(found) == 2 else None

    def _beyond(self, cursor: str, is_back: bool) -> Q:
        """The rows after the cursor's row; on the way back, the rows before it."""
        *names, pk = self.order
        than = "lt" if pk.startswith("-") != is_back else "gt"
        try:
            key = self.opts.pk.to_python(cursor)
        except ValidationError as exc:
            raise IncorrectLookupParameters from exc
        beyond = Q((f"pk__{than}", key))
        for name in (name.lstrip("-") for name in names):
            # The database compares with its own value: SQLite stores times as texts, with more or fewer digits.
            at = Subquery(self.model._default_manager.filter(pk=key).values(name))
            # The index serves the first condition. The second decides among rows of the same moment.
            beyond = Q((f"{name}__{than}e", at)) & (Q((f"{name}__{than}", at)) | beyond)
        return beyond


def whether(title: Any, without: Any, given: Any) -> type[admin.EmptyFieldListFilter]:
    """A filter by whether a column is null, with a label for each of the two."""

    class Whether(admin.EmptyFieldListFilter):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.title = title

        def choices(self, changelist: Any) -> Iterator[Any]:
            every, *found = super().choices(changelist)
            yield every
            yield from ({**each, "display": label} for each, label in zip(found, (without, given), strict=True))

    return Whether


def numbered(choices: Iterable[Any], names: Iterable[str], numbers: dict[str, str]) -> Iterator[Any]:
    """The choices of a filter, with the number of rows where it is known. The first choice means all names."""
    for choice, name in zip(choices, ["", *names], strict=False):
        yield {**choice, "display": f"{choice['display']} ({numbers[name]})"} if name in numbers else choice


def page(route: str, name: str, permission: str = "", posts: bool = True) -> Callable[[Any], Any]:
    """Make a method a page in addition to Django's own, or the target that a button ``posts`` to.

    A user needs the permission to view the model, and ``permission``, one of this app's, if it is given.
    """

    def mark(view: Any) -> Any:
        view.own_page = route, name, permission, posts
        return view

    return mark


class ReadOnlyAdmin(admin.ModelAdmin):
    """Shows rows to users who may view them. Rows cannot be changed, so Django shows all fields as text."""

    #: What a URL may filter by, in addition to the parameters of the list's filters. Django's own rule allows look-ups
    #: across relations, which can find out any value letter by letter, also a redacted one.
    lookups: frozenset[str] = frozenset()
    #: Orders of the list, by the value of ``?o=``: a label, and columns that an index has. The first is the default.
    sorts: ClassVar[dict[str, tuple[Any, tuple[str, ...]]]] = {"": ("", ("-pk",))}
    #: The columns that the list reads; empty: all columns.
    list_only: tuple[str, ...] = ()
    #: For a page that leaves out empty fields: the column behind each field that has another name.
    sources: ClassVar[dict[str, str] | None] = None
    changelist: type[ChangeList] = UncountedChangeList

    actions: Any = None
    list_per_page = 50
    list_max_show_all = 0
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    sortable_by = ()
    # Set by name, because a project may give the app another label.
    change_list_template = "jobs/admin/change_list.html"
    change_form_template: ClassVar[Any] = "jobs/admin/change_form.html"

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        own = {getattr(each, "parameter_name", None) for each in self.get_list_filter(request)}
        # PostgreSQL refuses text with a NUL.
        return lookup in self.lookups | own and "\0" not in value

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Require the permission to view. Django also accepts the one to change, but here that is for the buttons."""
        return may(request, get_permission_codename("view", self.opts))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).using(database_of(self.model))

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        return super().delete_view(request, object_id, extra_context)

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return self.changelist

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        # On a phone each row is a card, with the column's name before each value.
        labels = [(name, label_for_field(name, self.model, self)) for name in self.list_display[1:]]
        return super().changelist_view(request, {"labels": labels, **(extra_context or {})})

    def look_at(self, rows: Iterable[Any]) -> None:
        """Add to each row, as attributes, what its columns do not have; remove from it what is redacted."""
        veil(rows)

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        return self.search(queryset, term) if term else queryset, False

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Search only by conditions that an index can answer: no condition begins with a wildcard."""
        return rows

    # The page of a row

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        # PostgreSQL takes no NUL.
        row = None if "\0" in object_id else super().get_object(request, object_id, from_field)
        if row is not None:
            self.look_at([row])
        return row

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if self.sources is None:
            return super().get_fieldsets(request, obj)
        found = []
        for title, options in self.fieldsets or ():
            lines = [[each] if isinstance(each, str) else each for each in options["fields"]]
            if lines := [kept for line in lines if (kept := [name for name in line if self.says(obj, name)])]:
                found.append((title, {**options, "fields": lines}))
        return found

    def says(self, row: Any, name: str) -> bool:
        return getattr(row, (self.sources or {}).get(name, name), True) not in (None, "", 0, [], {})

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        context |= self.about(request, context["original"])
        return super().render_change_form(request, context, *args, **kwargs)

    def about(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """The context of the page's template, for what it shows in addition to the fields."""
        return {}

    # Pages in addition to Django's own

    @property
    def urls(self) -> list[Any]:
        """Each page notes its site, for the links on it."""
        found = self.get_urls()
        for each in found:
            # A project may add an included URLconf, or a coroutine, which links to none of our pages by itself.
            if each.callback is not None and not iscoroutinefunction(each.callback):
                each.callback = self._on_site(each.callback)
        return found

    def _on_site(self, view: Any) -> Any:
        @wraps(view)
        def shown(*args: Any, **kwargs: Any) -> Any:
            # It stays set: Django renders a page after its view.
            SITE.set(self.admin_site.name)
            return view(*args, **kwargs)

        return shown

    def get_urls(self) -> list[Any]:
        return [*self.own_urls(), *super().get_urls()]

    def own_urls(self) -> list[Any]:
        names = [name for kind in type(self).__mro__ for name, each in vars(kind).items() if hasattr(each, "own_page")]
        return [self._path(getattr(self, name)) for name in names]

    def _path(self, view: Any) -> Any:
        route, name, permission, posts = view.own_page

        @wraps(view)
        def allowed(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if not self.has_view_permission(request) or (permission and not may(request, permission)):
                raise PermissionDenied
            return view(request, *args, **kwargs)

        shown = self.admin_site.admin_view(require_POST(allowed) if posts else allowed)
        return path(route, shown, name=f"{self.opts.app_label}_{name}")

    def render(self, request: HttpRequest, template: str, title: str, **context: Any) -> TemplateResponse:
        shared = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media, "title": title}
        # A project's subclass has the templates of its class.
        own = next(each for each in type(self).__mro__ if each.__module__.startswith("jobs."))
        return TemplateResponse(request, template_of(template, getfile(own)), {**shared, **context})


def template_of(name: str, file: str) -> Any:
    """The project's or the app's template; else the one in the folder next to the file, where Django does not look."""
    try:
        return get_template(f"jobs/admin/{name}")
    except TemplateDoesNotExist:
        engine = next(each for each in engines.all() if isinstance(each, DjangoTemplates))
        return _parsed(engine, Path(file).parent / "templates" / name)


@cache
def _parsed(engine: DjangoTemplates, path: Path) -> Any:
    return engine.from_string(path.read_text())


def buttons(action: str, name: str, choices: Iterable[Any], asks_why: bool = True, **fields: Any) -> dict[str, Any]:
    """For the template of a page: a form that posts one of the choices; each choice is a value and its label."""
    return {"action": action, "name": name, "choices": choices, "asks_why": asks_why, "fields": fields}


def apart(view: Any) -> Any:
    """Exempt a view from ATOMIC_REQUESTS: each job gets its own transaction, so no row stays locked for long."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def by_key(rows: QuerySet[Any], text: str) -> QuerySet[Any]:
    """Rows whose key begins so. Keys are made of arguments: if those are redacted, a search must not reveal them."""
    return rows.none() if conf().REDACT else rows.filter(key__startswith=text)


def may(request: HttpRequest, codename: str) -> bool:
    """Whether the user has a permission of ours; a project may give the app another label."""
    return bool(request.user.has_perm(f"{label_of(codename)}.{codename}"))


def why_of(request: HttpRequest) -> str:
    return scrub(request.POST.get("why", "").strip(), 1000)
