"""Tasks that say nothing of retries are tried again by ``JOBS["RETRY"]``, if what they failed of may pass."""

from __future__ import annotations

import datetime
import errno
import http.client
import http.server
import smtplib
import socket
import ssl
import threading
import urllib.error
import urllib.request

import kombu.exceptions
import pytest
from celery import current_app, signals
from django.db import DatabaseError, IntegrityError, OperationalError, connection
from django.db.utils import load_backend
from django.utils import timezone

from jobs import Task
from jobs import signals as job_signals
from jobs.conf import conf, problems
from jobs.contrib.passing.passing import may_pass
from jobs.contrib.passing.settings import Settings
from jobs.models import Job
from tests.helpers import driver
from tests.helpers.harness import deliver
from tests.models import Effect

TABLE = Settings().RETRY


def of(package: str, name: str, *bases: type, **attributes: object) -> Exception:
    """An exception as a package that need not be installed raises it."""
    made = type(name, bases or (Exception,), {"__module__": package, **attributes})
    return made("away")


def status(package: str, name: str, code: int) -> Exception:
    return of(package, name, response=type("Response", (), {"status_code": code})())


def web(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://x", code, "no", http.client.HTTPMessage(), None)


PASSING = [
    ConnectionError(),
    ConnectionRefusedError(),
    BrokenPipeError(),
    TimeoutError(),
    socket.gaierror(-3, "Temporary failure in name resolution"),
    OSError(errno.EHOSTUNREACH, "No route to host"),
    ssl.SSLEOFError(),
    http.client.RemoteDisconnected(),
    http.client.IncompleteRead(b""),
    urllib.error.URLError(ConnectionRefusedError()),
    web(503),
    web(429),
    smtplib.SMTPServerDisconnected(),
    smtplib.SMTPConnectError(421, "busy"),
    smtplib.SMTPDataError(451, "later"),
    smtplib.SMTPRecipientsRefused({"ada@example.com": (450, b"greylisted")}),
    kombu.exceptions.OperationalError(),
    of("requests.exceptions", "ConnectionError", OSError),
    of("requests.exceptions", "ReadTimeout", type(of("requests.exceptions", "Timeout", OSError))),
    of("httpx", "ConnectError", type(of("httpx", "NetworkError"))),
    of("redis.exceptions", "ConnectionError"),
    status("requests.exceptions", "HTTPError", 502),
    status("httpx", "HTTPStatusError", 429),
    of("aiohttp.client_exceptions", "ClientResponseError", status=503),
]
FINAL = [
    ValueError(),
    KeyError(),
    FileNotFoundError(errno.ENOENT, "no such file"),
    PermissionError(errno.EACCES, "denied"),
    OSError(errno.ENOSPC, "disk full"),
    ssl.SSLCertVerificationError(),
    urllib.error.URLError(ssl.SSLCertVerificationError()),
    urllib.error.URLError("unknown url type"),
    web(404),
    smtplib.SMTPDataError(550, "no such user"),
    smtplib.SMTPAuthenticationError(535, "no"),
    smtplib.SMTPRecipientsRefused({"ada@example.com": (550, b"unknown")}),
    of("requests.exceptions", "SSLError", type(of("requests.exceptions", "ConnectionError", OSError))),
    status("requests.exceptions", "HTTPError", 400),
    of("payments", "ConnectionError"),
    DatabaseError(),
    IntegrityError(),
    OperationalError("no such table: x"),
]


@pytest.mark.parametrize("exc", PASSING, ids=repr)
def test_what_may_pass(exc):
    assert may_pass(exc)


@pytest.mark.parametrize("exc", FINAL, ids=repr)
def test_what_will_be_the_same_tomorrow(exc):
    assert not may_pass(exc)


def test_the_default_is_twelve_more_attempts_over_about_a_day():
    assert len(TABLE) == 12
    assert 0.9 < sum(TABLE) / 86400 < 1.1
    assert list(TABLE) == sorted(TABLE)


def other_database(**settings):
    wrapper = load_backend(settings["ENGINE"]).DatabaseWrapper({**connection.settings_dict, **settings}, "other")
    with wrapper.cursor() as cursor:
        cursor.execute("SELECT * FROM nowhere")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "settings",
    [
        {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nowhere/x.sqlite3", "OPTIONS": {}},
        {"ENGINE": "django.db.backends.postgresql", "NAME": "away", "HOST": "127.0.0.1", "PORT": "1", "OPTIONS": {}},
    ],
    ids=["sqlite", "postgresql"],
)
def test_another_database_that_is_away(settings):
    with pytest.raises(OperationalError) as caught:
        other_database(**settings)
    assert may_pass(caught.value)


@pytest.mark.django_db
def test_a_table_that_is_not_there_will_not_be():
    with pytest.raises(OperationalError, match="no such table") as caught:
        other_database(ENGINE="django.db.backends.sqlite3", NAME=":memory:", OPTIONS={})
    assert not may_pass(caught.value)


class Busy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(int(self.path[1:]))

    def log_message(self, *args): ...


@pytest.mark.parametrize("package", ["urllib", "requests", "httpx"])
@pytest.mark.parametrize(("code", "expected"), [(503, True), (429, True), (404, False)])
def test_a_server_that_is_busy_or_away(package, code, expected):
    server = http.server.HTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/{code}"

    def get():
        if package == "urllib":
            return urllib.request.urlopen(url)
        return pytest.importorskip(package).get(url).raise_for_status()

    try:
        with pytest.raises(Exception, match=str(code)) as caught:
            get()
        assert may_pass(caught.value) is expected
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(Exception, match="(?i)refused") as caught:
        get()
    assert may_pass(caught.value)


# The run of a job


@pytest.fixture
def make():
    """A task whose body leaves an effect, and raises."""
    names = []

    def make(exc, **options):
        names.append(f"tests.raises{len(names)}")

        def body():
            Effect.objects.create(key="left")
            raise exc

        return current_app._task_from_fun(body, name=names[-1], base=Task, **options)

    yield make
    for name in names:
        current_app.tasks.pop(name)


@pytest.mark.django_db(transaction=True)
def test_a_job_is_tried_again_by_the_table_and_then_fails(node, make):
    told = []

    def note(sender, request, reason, **kwargs):
        told.append((request.retries, str(reason.exc)))

    signals.task_retry.connect(note)
    result = make(ConnectionError("away")).delay()
    try:
        for number, seconds in enumerate(TABLE):
            before = timezone.now()
            assert deliver(result)[0] == "RETRY"
            job = Job.objects.get()
            assert (job.state, job.retries, job.error["type"]) == ("scheduled", number + 1, "ConnectionError")
            span = job.run_at - before
            slack = datetime.timedelta(seconds=5)
            assert datetime.timedelta(seconds=0.75 * seconds) - slack < span
            assert span < datetime.timedelta(seconds=1.25 * seconds) + slack
            Job.objects.update(state="ready", run_at=timezone.now())
        assert deliver(result)[0] == "FAILURE"
    finally:
        signals.task_retry.disconnect(note)
    job = Job.objects.get()
    assert (job.state, job.retries, len(job.errors)) == ("failed", 12, 13)
    assert told == [(number, "away") for number in range(12)]
    assert not Effect.objects.exists(), "each attempt was rolled back"


@pytest.mark.django_db(transaction=True)
def test_what_cannot_pass_fails_at_once(node, make):
    assert deliver(make(ValueError("wrong")).delay())[0] == "FAILURE"
    assert Job.objects.get().state == "failed"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "options", [{"max_retries": 0}, {"autoretry_for": (KeyError,)}, {"retry_backoff": True}, {"throws": (OSError,)}]
)
def test_a_task_that_speaks_of_retries_is_left_to_itself(node, make, options):
    deliver(make(ConnectionError("away"), **options).delay())
    assert Job.objects.get().state == "failed"


@pytest.mark.django_db(transaction=True)
def test_a_body_that_retries_by_hand_decides_how_often(node):
    def body(self):
        try:
            raise ConnectionError("away")
        except ConnectionError as exc:
            raise self.retry(exc=exc, countdown=0) from exc

    task = current_app._task_from_fun(body, name="tests.by_hand", base=Task, bind=True)
    try:
        result = task.delay()
        assert [deliver(result)[0] for _ in range(4)] == ["RETRY"] * 3 + ["FAILURE"]
    finally:
        current_app.tasks.pop("tests.by_hand")
    assert Job.objects.get().retries == 3, "Celery's own default"


@pytest.mark.django_db(transaction=True)
def test_none_switches_it_off(node, make, settings):
    settings.JOBS = {**settings.JOBS, "RETRY": None}
    deliver(make(ConnectionError("away")).delay())
    assert Job.objects.get().state == "failed"


@pytest.mark.django_db(transaction=True)
def test_a_shorter_table_is_a_shorter_life(node, make, settings):
    settings.JOBS = {**settings.JOBS, "RETRY": [0.01]}
    result = make(TimeoutError()).delay()
    assert deliver(result)[0] == "RETRY"
    Job.objects.update(state="ready")
    assert deliver(result)[0] == "FAILURE"


@pytest.mark.django_db(transaction=True)
def test_it_is_told_as_every_other_retry_is(node, make):
    seen = []

    def note(sender, job, error, **kwargs):
        seen.append((sender, error["type"]))

    job_signals.retried.connect(note)
    try:
        deliver(make(ConnectionError("away")).delay())
    finally:
        job_signals.retried.disconnect(note)
    assert seen == [("tests.raises0", "ConnectionError")]


def test_a_query_that_the_body_left_behind_is_its_own_failure():
    """psycopg says so without a code of the server's, as of a link that is gone."""
    exc = OperationalError("sending query failed: another command is already in progress")
    exc.__cause__ = driver.psycopg.OperationalError(*exc.args)
    assert not may_pass(exc)
    gone = OperationalError("consuming input failed: server closed the connection unexpectedly")
    gone.__cause__ = exc.__cause__
    assert may_pass(gone)


@pytest.mark.parametrize("given", [12, "12", [1, -1], [True], [1e12]])
def test_what_is_no_list_of_times_is_refused(settings, given):
    settings.JOBS = {"RETRY": given}
    [problem] = problems()
    assert problem.startswith("JOBS['RETRY'] must be a list of times above 0")


def test_a_list_of_times_may_be_one_of_timedeltas(settings):
    settings.JOBS = {"RETRY": [5, datetime.timedelta(minutes=1)]}
    assert conf().RETRY == [5, 60.0]
