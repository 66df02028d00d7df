"""How long the pages and the commands take over a long history: ``python -m benchmarks.pages``."""

from __future__ import annotations

import argparse
import datetime
import io
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote

from benchmarks import machine, processes
from tests.helpers import servers

#: Each page is measured so often, after so many requests that are not measured.
TIMES, WARM_UPS = 20, 2

#: ``--plans`` looks at the statements of pages that take more milliseconds than this.
SLOW = 20.0

SCAN = "Seq Scan on jobs_job "


@dataclass(frozen=True)
class Bound:
    milliseconds: float
    queries: int


@dataclass(frozen=True)
class Page:
    name: str
    #: A path, or the arguments of ``manage.py jobs``, with names from :func:`places`.
    what: str
    #: The values of the form, if the page is a POST.
    form: Mapping[str, str] | None = None
    bound: Bound | None = None


#: The limits for the median, and for the number of statements on all connections.
DASHBOARD = Bound(milliseconds=200, queries=30)

LIST, CHOSEN = "/admin/jobs/job/", {"_selected_action": "{failed}"}

PAGES = (
    *(
        Page(f"dashboard: {span}, by {by}", f"/admin/jobs/overview/?span={span}&by={by}", bound=DASHBOARD)
        for span in ("hour", "day", "week")
        for by in ("state", "task", "queue")
    ),
    Page("list: first page", LIST),
    Page("list: a page in the middle", LIST + "?p=after,{middle}"),
    Page("list: last page", LIST + "?p=last"),
    Page("list: oldest first", LIST + "?o=oldest"),
    Page("list: ended last", LIST + "?o=ended"),
    *(
        Page(f"list: {state}", f"{LIST}?state__exact={state}")
        for state in ("scheduled", "ready", "running", "succeeded", "failed", "cancelled")
    ),
    Page("list: one day", LIST + "?since={day}&until={next}"),
    Page("list: failed, one day", LIST + "?state__exact=failed&since={day}&until={next}"),
    Page("list: search by id", LIST + "?q={succeeded}"),
    Page("list: search by 8 digits", LIST + "?q={digits}"),
    Page("list: search by app", LIST + "?q=billing."),
    Page("list: search by task", LIST + "?q=webhooks.tasks.clean_up"),
    Page("list: search of no task", LIST + "?q=nothing.tasks"),
    Page("list: search by a function", LIST + "?q=clean_up"),
    Page("list: search by words of an error", LIST + "?q=it said 503"),
    Page("list: search by an argument", LIST + "?q={argument}"),
    Page("list: failed, search by nothing", LIST + "?state__exact=failed&q=nothing@example.com"),
    Page("list: of a task", LIST + "?task=webhooks.tasks.clean_up"),
    Page("list: of an app's tasks", LIST + "?task=billing.*"),
    Page("list: of no task", LIST + "?task=nothing.tasks.*"),
    Page("list: of a queue", LIST + "?queue=reports"),
    Page("list: of no queue", LIST + "?queue=nothing"),
    Page("list: of a host", LIST + "?node=worker3"),
    Page("list: of a former worker", LIST + "?node={worker}"),
    Page("list: of an error", LIST + "?error=PaymentError"),
    Page("list: failed, of an error", LIST + "?state__exact=failed&error=PaymentError"),
    Page("list: of no error", LIST + "?error=NothingError"),
    Page("list: failed, of no error", LIST + "?state__exact=failed&error=NothingError"),
    Page("list: of a key", LIST + "?key={key}"),
    Page("list: since 2 h", LIST + "?since=2h"),
    Page("list: before a day", LIST + "?until={day}"),
    Page("list: arguments contain", LIST + "?contains={argument}"),
    Page("list: arguments contain nothing", LIST + "?contains=nothing@example.com"),
    Page("list: succeeded, of a queue, before a day", LIST + "?state__exact=succeeded&queue=mail&until={day}"),
    *(
        Page(f"job: {state}", f"{LIST}{{{state}}}/change/")
        for state in ("scheduled", "ready", "running", "succeeded", "failed", "cancelled")
    ),
    Page("confirm: retry all failed", LIST + "?state__exact=failed", {"action": "retry", **CHOSEN}),
    Page("confirm: retry all of a task", LIST + "?q=billing.tasks.deliver", {"action": "retry", **CHOSEN}),
    Page("confirm: retry all of an error", LIST + "?error=PaymentError", {"action": "retry", **CHOSEN}),
    Page("confirm: delete all of a queue", LIST + "?queue=reports", {"action": "delete", **CHOSEN}),
    Page("confirm: cancel all", LIST, {"action": "cancel", **CHOSEN}),
    Page("workers", "/admin/jobs/node/"),
    Page("worker", "/admin/jobs/node/{node}/change/"),
    Page("markers", "/admin/jobs/marker/"),
    Page("markers: search", "/admin/jobs/marker/?q={key}"),
    Page("limits", "/admin/jobs/limit/"),
    Page("schedules", "/admin/jobs/schedule/"),
    Page("batches", "/admin/jobs/batch/"),
    Page("the promise, verified", "/admin/jobs/overview/verify/"),
    Page("health", "/jobs/health"),
    Page("metrics", "/jobs/metrics"),
    Page("jobs status --json", "status --json"),
    Page("jobs status --live --json", "status --live --json"),
    Page("jobs why (ready)", "why {ready}"),
    Page("jobs why (failed)", "why {failed}"),
    Page("jobs list", "list"),
    Page("jobs list --state failed", "list --state failed"),
    Page("jobs list --queue --since", "list --queue reports --since 7d"),
    Page("jobs retry --dry-run", "retry --error PaymentError --dry-run"),
)


@dataclass(frozen=True)
class Statement:
    sql: str
    values: Any
    seconds: float


@dataclass(frozen=True)
class Result:
    name: str
    median_ms: float
    worst_ms: float
    #: Medians of the processor's time here, and of the time waiting for the database.
    python_ms: float
    sql_ms: float
    queries: int
    bytes: int
    bound: Bound | None = None
    statements: list[Statement] = field(default_factory=list, repr=False)

    @property
    def is_held(self) -> bool:
        bound = self.bound
        return bound is None or (self.median_ms < bound.milliseconds and self.queries <= bound.queries)

    @property
    def verdict(self) -> str:
        if self.bound is None:
            return ""
        held = "held" if self.is_held else "BROKEN"
        return f"bound {self.bound.milliseconds:.0f} ms, {self.bound.queries} queries: {held}"

    def as_dict(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in ("name", "median_ms", "worst_ms", "python_ms", "sql_ms")}
        found |= {"queries": self.queries, "bytes": self.bytes, "bound": self.bound and asdict(self.bound)}
        return {**found, "held": self.is_held}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="how many (default: %(default)s)")
    parser.add_argument("--times", type=int, default=TIMES, help="how often each (default: %(default)s)")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON, and nothing else, to stdout")
    parser.add_argument("--plans", action="store_true", help=f"also the plans of all that takes over {SLOW:.0f} ms")
    options = parser.parse_args()
    if options.jobs < 1000:
        parser.error("--jobs: at least 1000, so that there are some in each state")
    return processes.run(lambda: _run(options))


@contextmanager
def database() -> Iterator[None]:
    """Start an empty PostgreSQL with its default settings, and set up Django for it."""
    server = servers.Postgres(settings=())
    try:
        os.environ |= {"DATABASE_URL": server.url, "CELERY_BROKER_URL": "jobs://", "CACHE_URL": ""}
        os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        yield
    finally:
        server.stop()


@database()
def _run(options: argparse.Namespace) -> int:
    from benchmarks import history

    began = time.monotonic()
    history.build(options.jobs, say)
    say(f"built in {time.monotonic() - began:.0f} s")
    about = surroundings(options.jobs)
    browser, known = Browser(), places()
    results = []
    for page in PAGES:
        results.append(measure(page, browser, known, options.times))
        say(f"{results[-1].name}: {results[-1].median_ms:.1f} ms")
    plans = {each.name: explain(each) for each in results if options.plans and each.median_ms > SLOW}
    if options.as_json:
        found = {**about, "pages": [each.as_dict() for each in results], "plans": plans}
        write(json.dumps(found, ensure_ascii=False))
    else:
        write(f"{about['jobs']:,} jobs, {about['size']}; {', '.join(about['versions'])}\n\n{as_table(results)}")
        for name, texts in plans.items():
            write(f"\n# {name}\n\n" + "\n\n".join(texts))
        for name, texts in plans.items():
            if numbers := [str(number) for number, text in enumerate(texts, 1) if SCAN in text]:
                write(f"SCANS jobs_job: {name}, statement {', '.join(numbers)}")
    return 0 if all(each.is_held for each in results) else 1


class Browser:
    """The browser of a superuser. It keeps the statements of all connections."""

    def __init__(self) -> None:
        from django.contrib.auth.models import User
        from django.db import connections
        from django.db.backends.signals import connection_created
        from django.test import Client

        self.statements: list[Statement] = []
        self.client = Client()
        self.client.force_login(User.objects.create_superuser("ada"))
        connections["default"].execute_wrappers.append(self._note)
        connection_created.connect(self._listen)

    def ask(self, page: Page, known: Mapping[str, str]) -> int:
        """
        Returns:
            How many bytes the answer has.
        """
        what = page.what.format(**known)
        self.statements = []
        if not what.startswith("/"):
            from django.core.management import call_command

            out = io.StringIO()
            call_command("jobs", *what.split(), stdout=out)
            return len(out.getvalue().encode())
        form = page.form and {name: value.format(**known) for name, value in page.form.items()}
        answer = self.client.get(what) if form is None else self.client.post(what, form)
        if answer.status_code != 200:
            raise RuntimeError(f"{page.name}: {what} is answered with {answer.status_code}")
        return len(answer.content)

    def _listen(self, connection: Any, **kwargs: Any) -> None:
        if self._note not in connection.execute_wrappers:
            connection.execute_wrappers.append(self._note)

    def _note(self, execute: Any, sql: str, values: Any, many: bool, context: Any) -> Any:
        began = time.perf_counter()
        try:
            return execute(sql, values, many, context)
        finally:
            self.statements.append(Statement(sql, values, time.perf_counter() - began))


def measure(page: Page, browser: Browser, known: Mapping[str, str], times: int = TIMES) -> Result:
    size = 0
    for _ in range(WARM_UPS):
        size = browser.ask(page, known)
    seconds, in_python, in_database = [], [], []
    for _ in range(times):
        began, worked = time.perf_counter(), time.process_time()
        browser.ask(page, known)
        seconds.append(time.perf_counter() - began)
        in_python.append(time.process_time() - worked)
        in_database.append(sum(each.seconds for each in browser.statements))
    return Result(
        name=page.name.format(**known),
        median_ms=round(1000 * statistics.median(seconds), 1),
        worst_ms=round(1000 * max(seconds), 1),
        python_ms=round(1000 * statistics.median(in_python), 1),
        sql_ms=round(1000 * statistics.median(in_database), 1),
        queries=len(browser.statements),
        bytes=size,
        bound=page.bound,
        statements=browser.statements,
    )


def explain(result: Result) -> list[str]:
    """The plan of each statement. For that it is executed again, and rolled back."""
    from django.db import connection, transaction

    texts = []
    for each in result.statements:
        if not each.sql.startswith(("SELECT", "INSERT", "UPDATE", "DELETE")):
            continue
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS) {each.sql}", each.values)
            plan = "\n".join(line for (line,) in cursor.fetchall())
            transaction.set_rollback(True)
        texts.append(f"{1000 * each.seconds:.1f} ms: {each.sql}\n{plan}" + (f"\n!! {SCAN}" if SCAN in plan else ""))
    return texts


def places() -> dict[str, str]:
    """The values for the paths: a job of each state, one in the middle of the history, a day, a worker."""
    from django.utils import timezone

    from jobs.models import Job, Node, State
    from jobs.models.fields import first_id

    rows = Job.objects.order_by("-pk")
    newest = {state: rows.filter(state=state)[0] for state in State}
    today = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    day = today - datetime.timedelta(days=10)
    middle = rows.filter(pk__lt=first_id(today - datetime.timedelta(days=15)))[0]
    return {
        **{str(state): str(job.pk) for state, job in newest.items()},
        "digits": str(newest[State.SUCCEEDED].pk)[-8:],
        "middle": str(middle.pk),
        "key": rows.exclude(marker_key=None)[100].marker_key,
        "argument": newest[State.SUCCEEDED].kwargs["address"],
        "node": str(newest[State.RUNNING].node_id),
        "worker": str(Node.objects.filter(signed_off=True).order_by("started_at")[0].pk),
        "day": quote(str(day)),
        "next": quote(str(day + datetime.timedelta(days=1))),
    }


def surroundings(jobs: int) -> dict[str, Any]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_size_pretty(pg_total_relation_size('jobs_job')), current_setting('server_version')")
        size, server = cursor.fetchone()
    found = {**machine.versions(["Django", "psycopg", "Celery"]), "PostgreSQL": server.split()[0]}
    versions = [f"{name} {version}" for name, version in found.items()]
    return {"jobs": jobs, "size": size, "versions": [*versions, f"{os.cpu_count()} cores"]}


def as_table(results: list[Result]) -> str:
    head = ["page", "median ms", "worst ms", "Python ms", "SQL ms", "queries", "kB", ""]
    rows = [
        [
            each.name,
            f"{each.median_ms:.1f}",
            f"{each.worst_ms:.1f}",
            f"{each.python_ms:.1f}",
            f"{each.sql_ms:.1f}",
            str(each.queries),
            f"{each.bytes / 1000:.1f}",
            each.verdict,
        ]
        for each in results
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if 0 < number < len(head) - 1 else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    ]
    return "\n".join(lines)


def say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
