"""A run is killed wherever it can die: each classic mistake is found at its line, and what is right passes."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import sys
import tempfile
import threading
import time
import types
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path

import celery
import pytest
from celery import shared_task
from django.core import mail
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError
from django.test import TestCase

from jobs import Snooze
from jobs.contrib.copies.store import PostgresCopy
from jobs.contrib.crashtest import crash
from jobs.contrib.crashtest.recorder import Operation
from jobs.execution import pipeline
from jobs.lifecycle.worker_state import is_alive
from jobs.models import Job, Node
from jobs.store import databases
from jobs.testing import assert_idempotent
from shop.models import Customer
from shop.services import place_order, sign_up
from shop.tasks import charge_order, import_orders, send_welcome_email, summarize
from tests.contrib.crashtest.findings import found_in, line_of
from tests.gallery import MEETING, calls, mails, rows
from tests.helpers.driver import is_plain
from tests.helpers.harness import ROOT
from tests.helpers.servers import wait_for
from tests.models import Effect, Imported

pytestmark = [
    pytest.mark.database,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "mysql", reason="copies of a database are made on SQLite and PostgreSQL"),
]

MISTAKES = [
    (module, name.removesuffix("_mended"))
    for module in (mails, rows, calls)
    for name in vars(module)
    if name.endswith("_mended") and name.removesuffix("_mended") not in MEETING
]


@pytest.fixture
def row():
    return Imported.objects.create(key="row")


@pytest.fixture
def provider(settings):
    """A payment provider that heeds no key; what it was asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(self.headers["Idempotency-Key"])
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps({"id": "ch_1"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    settings.PAYMENT_URL = f"http://127.0.0.1:{server.server_port}"
    yield asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), MISTAKES, ids=lambda each: getattr(each, "__name__", each))
def test_each_mistake_is_found_at_its_line(module, name, row, provider):
    task = getattr(module, name)
    first = found_in(task, row.pk, budget=(0, 0))[0]
    assert (first.file, first.line) == (str(Path(module.__file__).relative_to(ROOT)), line_of(task)), first


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), MISTAKES, ids=lambda each: getattr(each, "__name__", each))
def test_each_corrected_twin_passes(module, name, row, provider):
    assert_idempotent(getattr(module, f"{name}_mended"), row.pk, budget=(15, 2.0))


# Each guard of our own, taken out


@pytest.mark.slow
def test_without_once_it_is_found(row, monkeypatch):
    monkeypatch.setattr(rows, "once", lambda *key: contextlib.nullcontext(True))
    finding = found_in(rows.adds_up_mended, row.pk)[0]
    assert f"tests.Imported {row.pk}.fence: expected 1, found 2" in finding.says
    assert "once()" in finding.cure


@pytest.mark.slow
def test_without_the_idempotency_key_it_is_found(row, monkeypatch):
    assert_idempotent(rows.marked, row.pk)
    monkeypatch.setattr(pipeline, "leave_marker", lambda run: None)
    finding = found_in(rows.marked, row.pk)[0]
    assert (finding.kind, finding.line) == ("again", inspect.getsourcelines(rows.marked.run)[1])


@pytest.mark.slow
def test_without_the_ledger_it_is_found(row, provider, monkeypatch):
    def ledgerless(*key):
        call = types.SimpleNamespace(done=False, key="", answer=None)
        call.answered = lambda answer: vars(call).update(answer=answer)
        return contextlib.nullcontext(call)

    monkeypatch.setattr(calls, "effect", ledgerless)
    finding = found_in(calls.without_ledger_mended, row.pk)[0]
    assert finding.kind == "twice"
    assert "effect()" in finding.cure


@pytest.mark.slow
def test_without_the_transaction_of_the_body_it_is_found(row, monkeypatch):
    monkeypatch.setattr(rows.get_or_create_mended, "atomic", False)
    assert "a row" in found_in(rows.get_or_create_mended, row.pk)[0].says[0]


# The example project


@pytest.fixture
def customer():
    customer = sign_up(Customer(name="Ada", email="ada@example.com"))
    Job.objects.all().delete()
    return customer


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_tasks_of_the_shop_pass(customer, provider, tmp_path):
    order = place_order(customer, cents=1000)
    began = sum(os.times()[:4])
    feed = tmp_path / "feed"
    feed.write_text('{"email": "ada@example.com", "cents": 100}\n{"email": "ada@example.com", "cents": 200}\n')
    found = [
        assert_idempotent(send_welcome_email, customer.pk),
        assert_idempotent(charge_order, order.pk),
        assert_idempotent(import_orders, str(feed)),
        assert_idempotent(summarize, "2026-11-22"),
    ]
    # Not of the clock: other processes take their share of the machine.
    assert sum(os.times()[:4]) - began < 60
    assert all(len(each.points) > 3 for each in found)


def test_it_is_killed_once_where_the_same_is_left():
    def made(*kinds):
        return [Operation(number, kind.strip("!"), "", is_open=kind == "sql") for number, kind in enumerate(kinds, 1)]

    # What is marked is committed at once.
    operations = made("sql", "sql", "mail", "sql", "sql!", "sql", "sql", "commit")
    assert crash.alike(range(9), operations) == [[0], [1, 2], [3], [4], [5], [6, 7], [8]]
    # One that raised stands between them.
    assert crash.alike([0, 1, 3], made("sql", "sql", "sql")) == [[0], [1], [3]]


@shared_task
def commits_by_hand(pk):
    Imported.objects.filter(pk=pk).update(note="a")
    with connection.cursor() as cursor:
        cursor.execute("COMMIT")
        cursor.execute("BEGIN")
    Imported.objects.filter(pk=pk).update(fence=1)


@pytest.mark.slow
def test_statements_before_and_after_a_commit_by_hand_are_not_alike(row):
    if connection.vendor == "postgresql" and not is_plain():
        # Such a body has not succeeded where the driver tells of it.
        with pytest.raises(RuntimeError, match="ended its transaction itself"):
            assert_idempotent(commits_by_hand, row.pk, budget=(0, 0))
        return
    found = assert_idempotent(commits_by_hand, row.pk, budget=(0, 0))
    sql = [each.number for each in found.operations if each.kind == "sql"]
    assert sql == [1, 3]
    assert [1, 3] not in crash.alike(found.points, found.operations)


def test_all_tables_are_compared_in_one_statement(row, monkeypatch):
    if connection.vendor != "postgresql":
        pytest.skip("on SQLite a statement makes no way to a server")
    asked: list = []
    execute = PostgresCopy.execute
    monkeypatch.setattr(PostgresCopy, "execute", lambda *given: [asked.append(given[1]), execute(*given)][1])
    found = assert_idempotent(does_all, row.pk, budget=(0, 0))
    kills = len(crash.alike(found.points, found.operations))
    assert sum(sql.count("EXCEPT") > 0 for sql in asked) == 2 * (kills + 2)


# What is seen, and what is left alone


@shared_task(bind=True)
def does_all(self, pk):
    Imported.objects.filter(pk=pk).update(note="sent")
    mails.send(self.job.idempotency_key)
    cache.set("a", 1)
    with transaction.atomic():
        Effect.objects.create(key="ada")


@pytest.mark.slow
def test_each_operation_is_noted_with_its_line(row):
    found = assert_idempotent(does_all, row.pk)
    start = inspect.getsourcelines(does_all.run)[1]
    home = {each.kind: each.line - start for each in found.operations if each.file.endswith("test_crashtest.py")}
    assert home == {"sql": 6, "cache": 4}
    assert [each.kind for each in found.operations] == ["sql", "mail", "cache", "sql", "commit"]
    assert found.operations[-1].what == "COMMIT of the job's completion"


@shared_task
def asks(pk):
    import requests

    requests.post("http://provider.example.com/charges", json={}, timeout=1)


@pytest.mark.slow
def test_a_request_is_seen_also_where_a_test_replaces_it(row, monkeypatch):
    requests = pytest.importorskip("requests")

    def send(adapter, request, **options):
        response = requests.Response()
        response.status_code = 200
        return response

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    [finding] = found_in(asks, row.pk, budget=(0, 0))
    assert finding.says == ["POST provider.example.com/charges: 2 times, and not 1, without a key"]


@shared_task(base=celery.Task)
def stock():
    """Left to Celery."""


@shared_task
def calls_stock(pk):
    stock.delay()


@pytest.mark.slow
def test_a_message_to_a_stock_task_is_seen_and_not_sent(row):
    [finding] = found_in(calls_stock, row.pk, budget=(0, 0))
    assert finding.says == [f"call of the stock task {stock.name}: 2 times, and not 1, without a key"]
    assert "base=jobs.Task" in finding.cure


@pytest.mark.slow
def test_a_database_that_others_use_is_not_copied(row):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite copies what others use")
    with databases.apart("default") as other, other.cursor() as cursor:
        cursor.execute("SELECT 1")
        with pytest.raises(RuntimeError, match=r"cannot be copied while others are connected to it: .*process \d+"):
            assert_idempotent(mails.without_key, row.pk)


@pytest.mark.slow
def test_nothing_of_it_is_left(row):
    cache.set("before", 1)
    found_in(mails.cache_as_guard, row.pk)
    assert (mail.outbox, cache.get(f"welcome:{row.pk}"), cache.get("before")) == ([], None, 1)
    assert not Job.objects.exists()
    assert not Node.objects.exists()
    assert Imported.objects.get().note == ""


@pytest.mark.slow
def test_other_jobs_do_not_take_part(row):
    mails.without_key.delay(row.pk)
    assert_idempotent(mails.without_key_mended, row.pk)
    assert Job.objects.get().state == "ready"


class InTestCaseTest(TestCase):
    def test_the_transaction_of_a_test_case_is_refused(self):
        with pytest.raises(TransactionManagementError, match=r"TransactionTestCase.*django_db\(transaction=True\)"):
            assert_idempotent(mails.without_key, 1)


def test_an_open_transaction_is_refused(row):
    with pytest.raises(TransactionManagementError, match="outside of"), transaction.atomic():
        assert_idempotent(mails.without_key, row.pk)


@shared_task
def fails(pk):
    raise LookupError(pk)


def test_a_task_that_fails_by_itself_is_not_examined(row, settings):
    settings.JOBS = {**settings.JOBS, "RETRY": None}
    with pytest.raises(RuntimeError, match=r"does not succeed without a fault: failed: LookupError"):
        assert_idempotent(fails, row.pk)


@shared_task(bind=True, atomic=False)
def waits_for_itself(self, pk):
    """After a crash it finds its own trace, and waits for somebody who will not come."""
    if not cache.add("busy", 1):
        raise Snooze(1)
    Imported.objects.filter(pk=pk).update(note="sent")
    cache.delete("busy")


@pytest.mark.slow
def test_a_job_that_never_ends_after_a_crash_is_found(row):
    finding = found_in(waits_for_itself, row.pk, budget=(0, 0))[0]
    assert (finding.kind, finding.line) == ("failed", inspect.getsourcelines(waits_for_itself.run)[1] + 3)
    assert "Snooze" in finding.says[0]


@shared_task
def goes_on(pk):
    goes_on.delay(pk)


def test_a_task_that_has_no_end_is_refused(row):
    with pytest.raises(RuntimeError, match="does one enqueue itself"):
        assert_idempotent(goes_on, row.pk)


# The reports


@pytest.mark.slow
def test_the_report_is_one_page_that_asks_nobody(row, tmp_path):
    path = tmp_path / "report.html"
    found_in(mails.flag_after, row.pk, report=path)
    text = path.read_text()
    assert "tests/gallery/mails.py" in text
    assert "http://" not in text
    assert "https://" not in text
    assert text.count('class="found"') >= 1
    assert text.count('class="fine"') >= 1
    assert "&lt;" in text or "<script" not in text


def run(*args: str) -> str:
    out = StringIO()
    call_command("jobs", "crashtest", *args, stdout=out, no_color=True)
    return out.getvalue()


@pytest.mark.slow
def test_the_command_says_what_it_finds(row, tmp_path):
    out = StringIO()
    with pytest.raises(CommandError, match="1 found"):
        call_command(
            "jobs", "crashtest", "gallery.mails.without_key", str(row.pk), "--budget", "0",
            "--html", str(tmp_path / "a.html"), "--json", stdout=out,
        )  # fmt: skip
    found = json.loads(out.getvalue())
    [finding] = found["findings"]
    assert (found["is_idempotent"], finding["kind"], finding["line"]) == (False, "twice", line_of(mails.without_key))
    assert "<title>" in (tmp_path / "a.html").read_text()
    said = run("without_key_mended", str(row.pk), "--budget", "2")
    assert f"without_key_mended({row.pk}): nothing found" in said


@shared_task
def welcomes_nobody_twice(pk):
    if not Imported.objects.get(pk=pk).note:
        Imported.objects.filter(pk=pk).update(note="welcome")


@pytest.mark.slow
def test_a_call_that_has_nothing_to_do_is_said_to_tell_little(row):
    told = "note: it wrote no row, and sent nothing"
    assert told not in str(crash.examine(welcomes_nobody_twice, [row.pk], budget=(0, 0)))
    Imported.objects.update(note="welcome")
    assert told in str(crash.examine(welcomes_nobody_twice, [row.pk], budget=(0, 0)))


@pytest.mark.slow
def test_the_command_makes_no_request_unless_it_may(row, provider):
    with pytest.raises(CommandError, match="HttpRefused.*--allow-http"):
        run("without_ledger_mended", str(row.pk))
    assert provider == []
    run("without_ledger_mended", str(row.pk), "--allow-http", "--budget", "0")
    assert provider


# What may not be touched, and what may not stay


@shared_task
def asks_by_httpx(path):
    import httpx

    httpx.Client().send(types.SimpleNamespace(method="POST", url="http://a.example.com/", headers={}, content=path))


@pytest.mark.slow
def test_the_command_refuses_clients_that_bring_a_way_of_their_own(row, monkeypatch, tmp_path):
    httpx, sent = types.ModuleType("httpx"), tmp_path / "sent"
    httpx.Client = type("Client", (), {"send": lambda client, request: Path(request.content).touch()})
    monkeypatch.setitem(sys.modules, "httpx", httpx)
    with pytest.raises(CommandError, match="HttpRefused"):
        run("asks_by_httpx", str(sent))
    assert not sent.exists()
    crash.examine(asks_by_httpx, [str(sent)], budget=(0, 0))
    assert sent.exists()


@shared_task
def writes_elsewhere(directory):
    Path(directory).mkdir(exist_ok=True)
    with connections["away"].cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS a (b)")


def test_a_database_that_was_away_is_not_met_when_it_is_back(row, tmp_path, monkeypatch):
    path = tmp_path / "away" / "db.sqlite3"
    more = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": {}}
    monkeypatch.setitem(connections.settings, "away", {**connections.settings["default"], **more})

    def ensure(each):
        """As Django's, which forbids a test the databases that it did not name."""
        with each.wrap_database_errors:
            return each.connection or each.connect()

    monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", ensure)
    try:
        with pytest.raises(RuntimeError, match="'away' could not be reached"):
            assert_idempotent(writes_elsewhere, str(path.parent))
    finally:
        del connections["away"]
    assert not path.exists()


@shared_task
def hangs(path):
    Path(path).write_text(str(os.getpid()))
    time.sleep(50)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_is_told_to_end_leaves_neither_copies_nor_runs(number, row, tmp_path, monkeypatch):
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    connections.close_all()
    if (pid := os.fork()) == 0:
        try:
            signal.signal(number, signal.SIG_DFL)
            assert_idempotent(hangs, str(tmp_path / "run"))
        finally:
            os._exit(0)
    try:
        wait_for(lambda: (tmp_path / "run").exists() and (tmp_path / "run").read_text(), 20, "it runs")
        assert list((tmp_path / "temp").iterdir())
    finally:
        os.kill(pid, number)
        os.waitpid(pid, 0)
    assert list((tmp_path / "temp").iterdir()) == []
    wait_for(lambda: not is_alive(int((tmp_path / "run").read_text())), 5, "the run is dead")
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_database WHERE datname LIKE '%\\_crashtest'")
            assert not cursor.fetchall()


@shared_task
def tells(pk, secret):
    Imported.objects.filter(pk=pk).update(note="told")
    transaction.on_commit(lambda: does_all.delay(secret))


def redact(task, name, value):
    return "(hidden)" if name == "secret" or task.endswith("does_all") else value


@pytest.mark.slow
def test_reports_show_what_people_may_see(row, settings, tmp_path):
    settings.JOBS = {**settings.JOBS, "REDACT": f"{__name__}.redact"}
    path = tmp_path / "report.html"
    [finding] = found_in(tells, row.pk, "swordfish", budget=(0, 0), report=path)
    assert "does_all" in finding.says[0]
    assert "(hidden)" in finding.says[0]
    text = f"{path.read_text()} {finding}"
    assert "swordfish" not in text
    assert f"tells({row.pk}, &#x27;(hidden)&#x27;)" in text


@shared_task(name="tests.crashtest.coarse")
def writes_a_coarse_time(key, turns):
    """As a date does at midnight: the first runs are alike, and later ones are not."""
    with open(turns, "a+") as file:
        file.write(".")
        now = file.tell() > 3
    Effect.objects.create(key=key, note=str(now))
    Effect.objects.create(key=f"{key}-2")


def test_a_value_that_seldom_differs_is_no_finding(tmp_path):
    assert_idempotent(writes_a_coarse_time, "a", str(tmp_path / "turns"), budget=(0, 0))
