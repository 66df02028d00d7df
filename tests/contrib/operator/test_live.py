"""Open pages follow: a stream where the server can, which many share, and polling everywhere else."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from django.db import connection
from django.urls import reverse
from django.utils import timezone

from jobs.contrib.operator import live
from jobs.contrib.pauses import pauses
from jobs.models import Job
from tests import tasks
from tests.faults.worker import Worker
from tests.helpers.harness import in_body, wait_ended
from tests.helpers.rows import make, make_node, say
from tests.helpers.servers import wait_for
from tests.helpers.uvicorn import Uvicorn, session_of

pytestmark = pytest.mark.django_db(transaction=True)

LIVE, DASHBOARD = reverse("admin:jobs_live"), reverse("admin:jobs_dashboard")


@pytest.fixture
def asgi():
    server = Uvicorn()
    yield server
    server.stop()


def ask(server: Uvicorn, path: str, session: str) -> http.client.HTTPResponse:
    conn = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    conn.request("GET", path, headers={"Cookie": f"sessionid={session}", "Accept-Encoding": "gzip"})
    return conn.getresponse()


class Viewer:
    """A page that is open: when it heard of each change (Unix time)."""

    def __init__(self, server: Uvicorn, session: str) -> None:
        self.heard: list[float] = []
        self.came = time.time()
        self.response = ask(server, f"{LIVE}?since={time.time():.0f}", session)
        assert self.response.status == 200
        assert self.response.headers["Content-Type"] == "text/event-stream"
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while line := self.response.readline():
            if line == b"data: changed\n":
                self.heard.append(time.time())

    def settle(self) -> None:
        """Until nothing was heard for as long as two looks take."""
        wait_for(lambda: time.time() - max([self.came, *self.heard]) > 2.5, 30, "it is quiet")


@pytest.mark.slow
def test_an_open_page_hears_of_an_end_within_two_seconds(asgi, tmp_path):
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=1):
        job = tasks.waits.delay("a", str(started), str(gate))
        in_body(job.id, started)
        viewer = Viewer(asgi, session_of("view_job"))
        viewer.settle()
        known = len(viewer.heard)
        Path(gate).touch()
        [ended] = wait_ended(job.id)
        wait_for(lambda: len(viewer.heard) > known, 10, "it hears")
        assert viewer.heard[known] - ended.finished_at.timestamp() < 2


@pytest.mark.slow
def test_many_viewers_share_what_looks_for_them(asgi):
    session = session_of("view_job")
    first = Viewer(asgi, session)
    first.settle()
    few = sessions()
    others = [Viewer(asgi, session) for _ in range(5)]
    for each in others:
        each.settle()
    assert sessions() == few
    everybody = {each: len(each.heard) for each in (first, *others)}
    make()
    wait_for(lambda: all(len(each.heard) > before for each, before in everybody.items()), 10, "all of them hear")


def sessions() -> int:
    """Of the database; SQLite has none."""
    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return cursor.fetchone()[0]


def test_it_is_for_those_who_may_see_jobs(asgi):
    assert ask(asgi, LIVE, "").status == 302
    assert ask(asgi, LIVE, session_of("view_node")).status == 403
    page = ask(asgi, reverse("admin:jobs_node_changelist"), session_of("view_node")).read()
    assert b"EventSource" not in page
    assert f'EventSource("{LIVE}'.encode().replace(b"/", b"\\u002F") in escaped(
        ask(asgi, DASHBOARD, session_of("view_job")).read()
    )


def escaped(page: bytes) -> bytes:
    return page.replace(b"/", b"\\u002F")


def test_where_the_server_cannot_stream_pages_poll(staff):
    client = staff("view_job")
    assert client.get(LIVE).status_code == 404
    page = client.get(DASHBOARD).content.decode()
    assert "EventSource" not in page
    assert "setInterval(refresh, 10000)" in page
    assert "Refresh every 10 seconds" in page


@contextmanager
def watching():
    """A viewer of this process, and what it hears."""
    heard: list[str] = []

    async def watch() -> None:
        async for text in live.stream(time.time()):
            heard.append(text)  # noqa: PERF401 others look at it meanwhile

    thread = threading.Thread(target=lambda: asyncio.run(watch()))
    thread.start()
    yield heard
    thread.join()


def test_a_stream_ends_by_itself_and_the_last_one_ends_the_look(monkeypatch):
    monkeypatch.setattr(live, "LIFE", 2.0)
    monkeypatch.setattr(live, "ALIVE", 0.3)
    before = sessions()
    with ExitStack() as stack:
        heard = [stack.enter_context(watching()) for _ in range(2)]
        wait_for(lambda: live.watch._thread is not None, 10, "it looks")
        assert [each.name for each in threading.enumerate()].count("jobs-live") == 1
    for each in heard:
        assert each[0].startswith("retry:")
        assert ":\n\n" in each
    wait_for(lambda: live.watch._thread is None, 10, "nobody looks any more")
    wait_for(lambda: sessions() == before, 10, "and its connections are closed")


def test_a_process_holds_so_many_streams_and_refuses_the_next(asgi):
    """Each is an open file; pages that get none ask every ten seconds, as under WSGI."""
    session = session_of("view_job")
    streams = [ask(asgi, LIVE, session) for _ in range(live.STREAMS)]
    # Its first line is sent when it is counted.
    assert {(each.status, each.readline()) for each in streams} == {(200, b"retry: 2000\n")}
    refused = ask(asgi, LIVE, session)
    assert (refused.status, refused.headers["Retry-After"], refused.read()) == (503, "60", b"")
    assert ask(asgi, DASHBOARD, session).status == 200
    streams.pop().close()

    def is_let_in() -> bool:
        streams.append(ask(asgi, LIVE, session))
        return streams[-1].status == 200

    wait_for(is_let_in, 30, "one that ends leaves its place")


def test_of_those_who_come_at_once_no_more_are_let_in(monkeypatch):
    """The view looks before its stream begins."""
    monkeypatch.setattr(live, "STREAMS", 0)
    with watching() as heard:
        wait_for(lambda: heard, 10, "it is told when to ask again")
    assert heard == ["retry: 60000\n\n"]
    assert live.watch._thread is None


@pytest.mark.slow
def test_a_database_that_was_away_is_looked_at_again(monkeypatch):
    monkeypatch.setattr(live, "LIFE", 6.0)
    real, failed = live.look, []

    def away():
        if not failed:
            failed.append(True)
            raise OSError("away")
        return real()

    with watching() as heard:
        wait_for(lambda: len(heard) > 1, 10, "it is told at once: the page may be older")
        monkeypatch.setattr(live, "look", away)
        wait_for(lambda: failed, 10, "it looked")
        known = len(heard)
        make()
        wait_for(lambda: "data: changed\n\n" in heard[known:], 10, "it hears")


def test_a_look_sees_what_pages_show():
    def changed() -> bool:
        nonlocal seen
        before, seen = seen, live.look()
        return before != seen

    seen = live.look()
    assert not changed()
    job = make("ready")
    assert changed()
    running = make("running", node=make_node())
    assert changed()
    say(running, 1)
    assert changed()
    say(running, 2)
    assert changed()
    Job.objects.filter(pk=running.pk).update(state="succeeded", finished_at=timezone.now())
    assert changed()
    Job.objects.filter(pk=job.pk).update(state="scheduled")
    assert changed()
    pauses.pause("mail")
    assert changed()
    make_node()
    assert changed()
    assert not changed()
