"""Who commits a job tells the workers, at no risk; who waits for one hears it, or finds it by a look."""

from __future__ import annotations

import select
import threading
import time
import uuid
from contextlib import nullcontext

import pytest
from celery import current_app
from django.db import connection, transaction

from jobs import store
from jobs.conf import syncpoints
from jobs.contrib.listening import listener, news
from jobs.contrib.listening.listener import turn_of
from jobs.contrib.listening.news import News
from jobs.contrib.listening.notifications import Notifications
from jobs.contrib.results.listener import answer
from jobs.lifecycle import wakeups
from jobs.lifecycle.wakeups import ONE, SOME, Wakeup
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job
from jobs.store import databases
from tests import tasks
from tests.helpers import driver
from tests.helpers.concurrency import Elsewhere
from tests.helpers.servers import fair, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def queue() -> str:
    return current_app.conf.task_default_queue


@pytest.fixture(autouse=True)
def _never_rung():
    news._notified.clear()


def _after(seconds, notifications):
    """What it has heard by then; nobody says that no more comes."""
    told, end = notifications.heard(), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        select.select([notifications], [], [], left)
        told += notifications.heard()
    return told


@pytest.fixture
def heard():
    """What a listener hears until it is asked."""
    if connection.vendor != "postgresql":
        pytest.skip("nobody rings elsewhere")
    with databases.apart("default") as other:
        notifications = Notifications(other, news.CHANNEL)
        yield lambda: [News.read(text).queue for text in _after(0.1, notifications)]


def test_a_commit_tells_the_names_of_its_queues_and_no_more(heard):
    with transaction.atomic():
        tasks.effect.delay("a secret")
        tasks.effect.apply_async(("b",), queue="mail")
        assert heard() == []
    assert sorted(heard()) == sorted([queue(), "mail"])


def test_what_is_rolled_back_is_not_told(heard):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.effect.delay("a")
        raise ZeroDivisionError
    with transaction.atomic(), pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.effect.delay("b")
        raise ZeroDivisionError
    assert heard() == []


def test_a_job_for_later_is_not_told(heard):
    tasks.effect.apply_async(("a",), countdown=60)
    assert heard() == []


def test_a_process_rings_for_a_queue_once_in_a_while(heard, monkeypatch):
    """The listener looks again by itself."""
    monkeypatch.setattr(news, "PAUSE", 100.0)
    for _ in range(news.BURST + 5):
        tasks.effect.delay("a")
    tasks.effect.apply_async(("a",), queue="mail")
    assert sorted(heard()) == sorted([queue()] * news.BURST + ["mail"])
    for key in news._notified:
        # One pause and a bit has gone by.
        news._notified[key] -= 130.0
    for _ in range(5):
        tasks.effect.delay("a")
    assert heard() == [queue()]


def test_the_pause_is_shorter_than_the_listeners_looks():
    assert news.PAUSE == 0.02
    assert listener.AFTER[0] > news.PAUSE, "else nobody would look at what came within the pause"


def test_a_ring_is_a_statement_of_its_own_after_the_commit(monkeypatch):
    """In the transaction it would let only one at a time commit."""
    if connection.vendor != "postgresql":
        pytest.skip("nobody rings elsewhere")
    sent = []
    kind = driver.session_class()
    notify = kind.notify

    def note(session, channel, payloads):
        sent.append((channel, payloads, databases.status(connection)))
        notify(session, channel, payloads)

    monkeypatch.setattr(kind, "notify", note)
    with transaction.atomic():
        tasks.effect.delay("a")
        assert not sent
    [(channel, [payload], status)] = sent
    assert (channel, News.read(payload).queue, status) == (news.CHANNEL, queue(), databases.IDLE)


def test_what_is_told_stands_beside_the_statement(heard, node):
    """``pg_stat_statements`` would keep a statement for each job whose end is told."""
    driver.prepares()

    def asked() -> str:
        pid = connection.connection.info.backend_pid
        with databases.apart("default") as other, other.cursor() as cursor:
            cursor.execute("SELECT query FROM pg_stat_activity WHERE pid = %s", [pid])
            return cursor.fetchone()[0]

    texts = set()
    for name in ("a", "b"):
        job = Job.objects.get(pk=tasks.effect.delay(name).id)
        answer([job], "default")
        texts.add(asked())
        wakeups.notify("default", [name])
        texts.add(asked())
    assert len(texts) == 1
    assert "notify" in texts.pop()


def test_all_are_told_in_one_statement(heard):
    names = ["a", "\u00e4 \u20ac", "b"]
    wakeups.notify("default", names)
    assert heard() == names


def test_a_queue_may_have_any_name(heard):
    name = 'it\'s \\ a "queue"; --'
    wakeups.notify("default", [name])
    assert heard() == [name]


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_ring_that_fails_is_no_error_and_leaves_a_sound_connection(heard, autocommit):
    """The server ends the connection between the commit and the ring."""

    def end(point):
        if point == "before_notify":
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                [pid] = cursor.fetchone()
            with databases.apart("default") as other, other.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s)", [pid])

    syncpoints.arm(end)
    with nullcontext() if autocommit else transaction.atomic():
        tasks.effect.delay("a")
    syncpoints.arm(None)
    assert heard() == []
    tasks.effect.delay("b")
    assert Job.objects.filter(state="ready").count() == 2


@pytest.fixture
def listening(monkeypatch):
    """A listener of this worker, and the wake-up that it rings."""
    wakeup, stopping, looked, look = Wakeup(), threading.Event(), threading.Event(), listener._look
    monkeypatch.setattr(listener, "wakeup", wakeup)
    monkeypatch.setattr(listener, "_look", lambda alias: (look(alias), looked.set()))
    worker_state.queues = [queue()]
    thread = listener.listener_of("default", stopping)
    if thread is None:
        pytest.skip("nothing tells other sessions of new jobs: the clock looks for them")
    slot = worker_state.take()
    thread.start()
    # The first look finds nothing.
    assert looked.wait(20)
    yield wakeup
    stopping.set()
    thread.join(5)
    assert not thread.is_alive()
    slot.free()


def test_a_listener_wakes_a_process_when_a_job_is_committed(listening):
    began = fair()
    Elsewhere(lambda: tasks.noop.delay()).result()
    assert listening.wait(5)
    assert fair() - began < 1


@pytest.mark.parametrize(("count", "kind"), [(1, ONE), (2, SOME)])
def test_a_listener_says_whether_one_job_came(listening, count, kind):
    if not store.of("default").has_notify:
        pytest.skip("elsewhere nobody says how many")
    Elsewhere(lambda: tasks.noop.delay_many([(number,) for number in range(count)])).result()
    assert listening.wait(5) == kind


def test_a_listener_finds_what_came_within_the_callers_pause(listening, monkeypatch):
    """The second call rang for nobody: the looks after the first ring find it."""
    monkeypatch.setattr(news, "BURST", 1)
    monkeypatch.setattr(news, "PAUSE", 60.0)

    def call_twice():
        tasks.noop.delay()
        assert listening.wait(5)
        Job.objects.update(state="running", node=uuid.uuid4(), token=1, started_at="2026-01-01T00:00:00Z")
        tasks.noop.delay()

    Elsewhere(call_twice).result()
    assert listening.wait(5)


def test_a_listener_tells_of_no_queue_that_this_worker_does_not_consume(listening):
    Elsewhere(lambda: tasks.noop.apply_async(queue="others")).result()
    assert not listening.wait(0.5)


def test_a_listener_survives_the_loss_of_its_connection(listening):
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL only")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
        assert cursor.fetchone()[0] >= 1
    wait_for(lambda: tasks.noop.delay() and listening.wait(0.3), 10, "it listens again", step=0.1)


def test_news_are_read_as_they_were_told(heard):
    for name in ("mail", "a\nb", "\n", 'it\'s \\ a "queue"; --', ""):
        one = News(name, 3, 2**63 - 1)
        assert News.read(str(one)) == one
    with databases.apart("default") as other:
        notifications = Notifications(other, news.CHANNEL)
        with transaction.atomic():
            tasks.noop.delay_many([(number,) for number in range(7)])
            tasks.noop.apply_async(queue="mail")
        told = [News.read(text) for text in _after(0.1, notifications)]
    assert {each.queue: each.jobs for each in told} == {queue(): 7, "mail": 1}


def test_for_each_new_job_one_node_looks_at_once_and_they_take_turns():
    nodes = {uuid.uuid4(): ["mail", "other"] for _ in range(8)}
    elsewhere = {uuid.uuid4(): ["other"] for _ in range(8)}
    first = []
    for number in range(400):
        for count in (1, 3, 100):
            news = News("mail", count, number)
            turns = sorted(turn_of(news, node, nodes | elsewhere) for node in nodes)
            assert turns == sorted(max(0, place + 1 - count) for place in range(8))
        first += [node for node in nodes if turn_of(News("mail", 1, number), node, nodes) == 0]
    assert len(first) == 400
    assert min(first.count(node) for node in nodes) > 20


def test_a_node_that_knows_no_other_looks_at_once():
    assert turn_of(News("mail", 1, 7), uuid.uuid4(), {}) == 0


@pytest.fixture
def behind(monkeypatch):
    """The listener, for whose node it is never the turn: another node is told of first, and does nothing."""

    def be(turn):
        monkeypatch.setattr(listener, "turn_of", lambda *args: turn)

    return be


@pytest.mark.parametrize("turn", [1, 2, 3, 50])
def test_a_job_whose_node_does_not_look_is_found_by_the_others_soon(listening, behind, turn):
    """It may be busy, or dead: its others need no poll."""
    if connection.vendor != "postgresql":
        pytest.skip("nobody rings elsewhere")
    behind(turn)
    began = fair()
    Elsewhere(lambda: tasks.noop.delay()).result()
    assert listening.wait(5)
    assert fair() - began < 0.5


def test_a_job_that_was_taken_wakes_nobody_else(listening, behind):
    if connection.vendor != "postgresql":
        pytest.skip("nobody rings elsewhere")
    behind(3)
    wakeups.notify("default", [queue()])
    assert not listening.wait(0.3)


def test_a_stream_of_news_puts_off_no_look(listening, behind):
    """Each time it is another's turn, who is busy."""
    if connection.vendor != "postgresql":
        pytest.skip("nobody rings elsewhere")
    behind(3)
    Elsewhere(lambda: tasks.noop.delay()).result()

    def told_again():
        news._notified.clear()
        wakeups.notify("default", [queue()])
        return listening.wait(0.01)

    wait_for(told_again, 2, "somebody looks", step=0.0)
