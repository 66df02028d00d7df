"""The keys of a queue take turns: one customer's many jobs do not stand before another's first."""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from threading import Barrier

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.contrib.fair import claims as fair
from jobs.contrib.fair.claims import FairClaimer
from jobs.contrib.fair.keys import NO_KEY
from jobs.contrib.fair.order import Rotation
from jobs.contrib.operations import by_hand
from jobs.contrib.pauses import pauses
from jobs.lifecycle import claims, transitions
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job
from jobs.store import postgresql
from jobs.store.base import Claim
from jobs.store.sessions import Session
from tests import tasks
from tests.contrib.fair import tasks as bodies
from tests.faults.worker import Worker
from tests.helpers import driver
from tests.helpers.plans import analyze
from tests.helpers.servers import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("node")]

QUEUE = "fair"


def claim(size: int = 1, claimer: FairClaimer | None = None, queue: str = QUEUE) -> list[Job]:
    return (claimer or claims.claimer(None)).claim("default", queue, worker_state.node, size)


def keys_of(times: int, size: int = 1, claimer: FairClaimer | None = None) -> list[str]:
    """The keys of so many claims, one after the other."""
    claimer = claimer or claims.claimer(None)
    return [job.fair_key for _ in range(times) for job in claim(size, claimer)]


def backlog(keys: int, each: int, queue: str = QUEUE) -> None:
    """Jobs of many keys in few statements: those of the first key stand before all others."""
    bodies.of_a_customer.delay("k00000", 0)
    names = [field.column for field in Job._meta.concrete_fields if field.column not in ("id", "fair_key")]
    quote = connection.ops.quote_name
    new_id = {"postgresql": "gen_random_uuid()", "mysql": "REPLACE(UUID(), '-', '')"}
    new_id = new_id.get(connection.vendor, "lower(hex(randomblob(16)))")
    key = {"mysql": "CONCAT('k', LPAD(FLOOR((i - 1) / {0}), 5, '0'))", "sqlite": "printf('k%%05d', (i - 1) / {0})"}
    key = key.get(connection.vendor, "'k' || lpad(((i - 1) / {0})::text, 5, '0')").format(each)
    columns = ", ".join(map(quote, names))
    numbers = (
        f"(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {keys * each}) SELECT i FROM n)"
    )
    if connection.vendor == "mysql":
        numbers = f"(SELECT seq AS i FROM seq_1_to_{keys * each})"
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO jobs_job (id, fair_key, {columns}) "
            f"SELECT {new_id}, {key}, {columns} FROM jobs_job, {numbers} AS numbers",
            [],
        )


def test_the_first_job_of_another_starts_at_once():
    bodies.of_a_customer.delay_many([("big", number) for number in range(100)])
    bodies.of_a_customer.delay("small")
    assert "small" in keys_of(2)


@pytest.mark.slow
def test_a_backlog_of_200_000_holds_up_nobody():
    backlog(1, 200_000)
    bodies.of_a_customer.delay("small")
    assert "small" in keys_of(2)
    bodies.of_a_customer.delay("other")
    assert "other" in keys_of(1, 50)


def test_keys_take_turns():
    for key in "abc":
        bodies.of_a_customer.delay_many([(key, number) for number in range(4)])
    found = keys_of(12)
    assert [Counter(found[start : start + 3]) for start in range(0, 12, 3)] == [Counter("abc")] * 4
    assert keys_of(1) == []


def test_who_is_alone_gets_all():
    bodies.of_a_customer.delay_many([("a", number) for number in range(60)])
    claimer = claims.claimer(None)
    assert len(claim(50, claimer)) == 50
    assert [len(claim(50, claimer)), len(claim(50, claimer))] == [10, 0]


def test_several_at_once_are_of_all_keys():
    for key in "abcd":
        bodies.of_a_customer.delay_many([(key, number) for number in range(20)])
    assert Counter(keys_of(1, 20)) == dict.fromkeys("abcd", 5)


def test_more_keys_than_a_claim_takes_go_round():
    for key in range(30):
        bodies.of_a_customer.delay_many([(f"{key:02}", number) for number in range(2)])
    found = keys_of(6, 10)
    assert {*Counter(found[:30]).values()} == {1}
    assert {*Counter(found).values()} == {2}


def test_priority_counts_within_the_key():
    bodies.of_a_customer.delay("a", 1)
    bodies.of_a_customer.apply_async(("a", 2), priority=-1)
    bodies.of_a_customer.apply_async(("b", 3), priority=5)
    found = [job.args for _ in range(3) for job in claim()]
    assert [number for key, number in found if key == "a"] == [2, 1]
    claimer = claims.claimer(None)
    assert [job.args for job in claim(1, claimer)] == []


def test_jobs_without_a_key_share_one_turn():
    bodies.of_a_customer.delay_many([("a", number) for number in range(10)])
    bodies.of_nobody.delay_many([(number,) for number in range(10)])
    found = keys_of(6)
    assert Counter(found) == {"a": 3, NO_KEY: 3}


def pages_of(sql: str, values: dict[str, object]) -> tuple[int, str]:
    """How many pages a statement reads, and its plan. It changes nothing."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS) {sql}", values)
        text = "\n".join(line for [line] in cursor.fetchall())
        transaction.set_rollback(True)
    hit, read = (re.search(rf"Buffers: shared.*? {word}=(\d+)", text.partition("\n")[2]) for word in ("hit", "read"))
    return sum(int(each[1]) for each in (hit, read) if each), text


def explained(
    size: int,
    key: str | None,
    left: int = 0,
    weights: dict[str, int] | None = None,
    places: dict[str, tuple[object, ...]] | None = None,
) -> tuple[int, str]:
    """The same of a claim: of the plain one, or of one behind a key."""
    claim = Claim(QUEUE, worker_state.node, size, 1)
    values = {"node": worker_state.node, "token": 1, "backend": 1}
    sql = postgresql.claim_sql(QUEUE, size, False, False)
    if key is not None:
        first, more = Rotation(QUEUE, size, key, left, weights or {}, places or {}).first(claim)
        sql, values = postgresql.CLAIM.format(first=first, columns="id"), values | more
    return pages_of(sql, values)


on_postgresql = pytest.mark.skipif("connection.vendor != 'postgresql'", reason="pages are counted there")


@on_postgresql
@pytest.mark.parametrize("size", [1, 20])
def test_a_claim_among_10_000_keys_reads_little_more_than_a_plain_one(size):
    backlog(10_000, 2)
    analyze("jobs_job")
    plain, _ = explained(size, None)
    for key in ("k00000", "k04999", "k09998"):
        pages, plan = explained(size, key)
        assert pages <= 1.5 * plain, plan
        assert "Seq Scan on jobs_job" not in plan
        assert "jobs_job_fair" in plan


@on_postgresql
def test_what_a_key_has_waiting_costs_a_claim_nothing():
    backlog(3, 10_000)
    analyze("jobs_job")
    for size, most in ((1, 40), (20, 400)):
        pages, plan = explained(size, "k00000", 2, {"k00000": 3})
        assert pages < most, plan


@pytest.fixture
def slow_look(monkeypatch):
    """Each look from the start takes long enough to keep a place."""
    monkeypatch.setattr(fair, "FAST_LOOK", -1.0)


@pytest.fixture
def long_look(monkeypatch, slow_look):
    """And none is repeated."""
    monkeypatch.setattr(fair, "LOOK", 3600.0)
    monkeypatch.setattr(fair, "RARELY", 1e9)


@on_postgresql
@pytest.mark.parametrize("size", [1, 20])
def test_a_claim_does_not_step_over_what_was_claimed_before(held_open, long_look, size):
    for key, many in (("big", 3100), ("done", 1000), ("last", 3100)):
        bodies.of_a_customer.delay_many([(key, number) for number in range(many)])
    analyze("jobs_job")
    claimer, new = claims.claimer(None), explained(size, "last")[0]
    while Job.objects.filter(state="ready").count() > 200:
        assert claim(100, claimer)
    left = Counter(Job.objects.filter(state="ready").values_list("fair_key", flat=True))
    assert {*left} == {"big", "last"}, left
    places = {key: place for key, (_, place) in claimer._places["default", QUEUE].items()}
    for key in ("big", "done", "last"):
        pages, plan = explained(size, key, places=places)
        assert pages <= 1.5 * new, plan
        assert explained(size, key)[0] > 2.5 * new, "from the start it would"


def test_a_better_row_that_comes_later_is_found_within_a_second(slow_look):
    for key in "abc":
        bodies.of_a_customer.delay_many([(key, number) for number in range(300)])
    claimer = claims.claimer(None)
    assert {*keys_of(6, 1, claimer)} == {*"abc"}
    better = bodies.of_a_customer.apply_async(("b", "better"), priority=-1)
    began, found = time.monotonic(), []
    while better.id not in found:
        found += [str(job.pk) for job in claim(1, claimer)]
        time.sleep(0.02)
        assert time.monotonic() - began < fair.LOOK + 0.5, "it starves behind a stream of others"


@on_postgresql
@pytest.mark.parametrize("left", [0, 2])
def test_a_key_that_was_not_looked_at_keeps_its_time(slow_look, left):
    """Guard: else a better row of a key may never be looked at, if its place is renewed between its turns."""
    claimer, spot, at = claims.claimer(None), ("default", QUEUE), (0, timezone.now(), uuid.UUID(int=1))
    for key in "bd":
        bodies.of_a_customer.delay_many([(key, number) for number in range(3)])
    claimer._places[spot] = dict.fromkeys("abcde", (0.0, at))
    claimer._turn_at[spot] = "b", left
    assert [job.fair_key for job in claim(1, claimer)] == ["b" if left else "d"]
    renewed = {key for key, (until, _) in claimer._places[spot].items() if until}
    assert renewed == ({"b"} if left else {*"cd"})


@on_postgresql
def test_what_a_claim_left_out_is_looked_for_from_the_start(slow_look):
    """Guard: else jobs of a task that may run again stand before the place of their key."""
    first, second = bodies.of_a_customer, bodies.another_of_a_customer
    for task in (first, second):
        task.delay_many([("a", number) for number in range(3)])
    # Else a claim of all would look from the start, because nothing else is left.
    second.delay_many([("b", number) for number in range(9)])
    claimer, node = claims.claimer(None), worker_state.node
    [job] = claimer.take("default", Claim(QUEUE, node, 1, 1, without=[first.name]))
    while job.fair_key != "a":
        [job] = claimer.take("default", Claim(QUEUE, node, 1, 1, without=[first.name]))
    found = [claimer.take("default", Claim(QUEUE, node, 1, 2)) for _ in range(2)]
    assert [first.name] == [job.task for [job] in found if job.fair_key == "a"]


@on_postgresql
def test_a_look_that_is_fast_is_repeated_at_once(monkeypatch):
    monkeypatch.setattr(fair, "FAST_LOOK", 1e9)
    bodies.of_a_customer.delay_many([("a", number) for number in range(9)])
    claimer = claims.claimer(None)
    assert keys_of(3, 2, claimer) == ["a"] * 6
    better = bodies.of_a_customer.apply_async(("a", "better"), priority=-1)
    assert [str(job.pk) for job in claim(1, claimer)] == [better.id]


@on_postgresql
def test_places_leave_no_job_behind(long_look):
    """Whatever stands before a place is found when nothing is left behind it."""
    for key in "abc":
        bodies.of_a_customer.delay_many([(key, number) for number in range(5)])
    claimer = claims.claimer(None)
    assert len(claim(10, claimer)) == 10
    for key in "abc":
        bodies.of_a_customer.apply_async((key, 9), priority=-1)
    numbers = [job.args[1] for _ in range(8) for job in claim(1, claimer)]
    assert 9 not in numbers[:5]
    assert numbers[5:] == [9, 9, 9]


@on_postgresql
def test_a_process_knows_the_places_of_few_keys(monkeypatch, slow_look):
    monkeypatch.setattr(fair, "PLACES", 3)
    for key in "abcdefgh":
        bodies.of_a_customer.delay_many([(key, number) for number in range(3)])
    claimer = claims.claimer(None)
    assert Counter(keys_of(24, 1, claimer)) == dict.fromkeys("abcdefgh", 3)
    assert len(claimer._places["default", QUEUE]) == 3


def test_a_plain_queue_is_claimed_by_the_plain_statement(monkeypatch):
    """Guard: not one statement more, and no other one, where no job has a key."""
    tasks.noop.delay_many([()] * 30)
    assert not Job.objects.exclude(fair_key=None)
    asked = []
    for claimer in (claims.Claimer(), FairClaimer()):
        with CaptureQueriesContext(connection) as queries, monkeypatch.context() as patch:
            said = queries
            if connection.vendor == "postgresql":
                said, session = [], driver.session_class()
                patch.setattr(session, "fetch", noted(session.fetch, said))
            assert len(claimer.claim("default", "celery", worker_state.node, 5)) == 5
        asked.append([re.sub(r"\b\d{5,}\b|'[0-9a-f-]{32,}'", "?", str(each["sql"])) for each in said])
    assert asked[0] == asked[1]
    assert asked[0]


def noted(fetch: Callable[..., object], said: list[dict[str, str]]) -> Callable[..., object]:
    def note(session: Session, sql: str, values: object) -> object:
        said.append({"sql": sql})
        return fetch(session, sql, values)

    return note


def test_a_key_may_have_a_larger_share(settings):
    settings.JOBS = {**settings.JOBS, "QUEUES": {QUEUE: {"weights": {"a": 3}}}}
    for key in "abc":
        bodies.of_a_customer.delay_many([(key, number) for number in range(12)])
    claimer = claims.claimer(None)
    jobs = [job for _ in range(20) for job in claim(1, claimer)]
    found = [job.fair_key for job in jobs]
    assert {key: found.count(key) for key in "abc"} == {"a": 12, "b": 4, "c": 4}
    assert [job.args[1] for job in jobs if job.fair_key == "a"] == [*range(12)], "within a turn the queue's order holds"
    runs = ["".join(run) for _, run in groupby(found)]
    assert {len(run) for run in runs[1:-1] if run[0] == "a"} == {3}, runs


def test_a_share_counts_for_several_at_once(settings):
    settings.JOBS = {**settings.JOBS, "QUEUES": {QUEUE: {"weights": {"a": 3}}}}
    for key in "ab":
        bodies.of_a_customer.delay_many([(key, number) for number in range(40)])
    assert Counter(keys_of(1, 20)) == {"a": 15, "b": 5}


def test_a_queue_may_say_the_key_of_its_tasks(settings, declare):
    settings.JOBS = {**settings.JOBS, "QUEUES": {"mail": {"fair_key": "{user_id}"}}}
    send = declare()
    for key in (1, 1, 1, 2):
        send.apply_async((key,), queue="mail")
    send.apply_async((1,), queue="other")
    bodies.of_nobody.apply_async((), queue="mail")
    rows = Job.objects.order_by("pk").values_list("queue", "fair_key")
    assert [*rows] == [*[("mail", "1")] * 3, ("mail", "2"), ("other", None), ("mail", NO_KEY)]
    claimer = claims.claimer(None)
    assert {job.fair_key for _ in range(3) for job in claim(1, claimer, "mail")} == {"1", "2", NO_KEY}


def test_what_was_called_before_shares_the_turn_of_those_without_a_key():
    """Guard: rows of before the deploy, and calls by name, are not left behind those that have a key."""
    bodies.of_nobody.delay_many([(number,) for number in range(20)])
    Job.objects.update(fair_key=None)
    bodies.of_a_customer.delay_many([("a", number) for number in range(20)])
    found = [
        job.fair_key or NO_KEY for claimer in [claims.claimer(None)] for _ in range(10) for job in claim(1, claimer)
    ]
    assert 4 <= found.count(NO_KEY) <= 6, found
    bodies.of_a_customer.delay("b")
    Job.objects.filter(fair_key__isnull=False).delete()
    Job.objects.update(fair_key=None)
    assert len(claim(20)) == Job.objects.filter(state="running").count(), "alone they are claimed as before"


def test_what_was_called_before_has_its_turn_behind_a_backlog():
    bodies.of_a_customer.delay_many([("big", number) for number in range(1000)])
    bodies.of_nobody.delay_many([(number,) for number in range(3)])
    Job.objects.filter(task=bodies.of_nobody.name).update(fair_key=None)
    assert keys_of(10).count(NO_KEY) == 3


def test_those_without_a_key_are_looked_for_seldom(monkeypatch):
    """No index has them alone."""
    bodies.of_a_customer.delay_many([("big", number) for number in range(20)])
    asked = []
    monkeypatch.setattr(fair, "adopt", lambda using, queue: asked.append(time.sleep(0.03)) or 0)
    claimer = claims.claimer(None)
    began = time.monotonic()
    keys_of(10, 1, claimer)
    assert len(asked) == 1
    assert claimer._adopt_at["default", QUEUE] - began >= 0.03 * fair.RARELY


def test_a_queue_that_nobody_named_is_found_by_its_jobs():
    for key in ("a", "a", "a", "b"):
        bodies.of_a_customer.apply_async((key,), queue="mail")
    claimer = claims.claimer(None)
    assert [job.fair_key for _ in range(3) for job in claim(1, claimer, "mail")].count("b") == 1


def test_a_job_keeps_its_key_when_it_is_tried_again():
    bodies.of_a_customer.delay("a")
    [job] = claim()
    assert transitions.retry(job, transitions.now_plus(0), transitions.error_entry("ValueError", "no"), {})
    assert Job.objects.get().fair_key == "a"
    assert by_hand.run_now(job.pk, "default")
    assert [again.fair_key for again in claim()] == ["a"]


def test_a_paused_queue_is_not_claimed():
    bodies.of_a_customer.delay("a")
    pauses.pause(QUEUE)
    assert claim() == []


def test_claims_leave_the_tasks_of_others_alone():
    for key in "ab":
        bodies.of_a_customer.delay(key)
        bodies.one_of_a_customer.delay(key)
    one, other = bodies.of_a_customer.name, bodies.one_of_a_customer.name
    claimer = claims.claimer(None)
    found = claimer.claim("default", QUEUE, worker_state.node, 10, without=(one,))
    assert {job.task for job in found} == {other}
    found = claimer.claim("default", QUEUE, worker_state.node, 10, only=(one,))
    assert {job.task for job in found} == {one}


def test_limits_hold_and_the_keys_of_the_others_take_turns():
    for key in "ab":
        bodies.one_of_a_customer.delay_many([(key, number) for number in range(5)])
    bodies.of_a_customer.delay_many([("c", number) for number in range(5)])
    claimer = claims.claimer(None)
    found = [job for _ in range(8) for job in claim(1, claimer)]
    assert Counter(job.fair_key for job in found) == {"a": 1, "b": 1, "c": 5}
    assert {job.fair_key for job in found[:3]} == {*"abc"}
    first = next(job for job in found if job.fair_key == "a")
    assert transitions.succeed(first, None, 0.1)
    claimer.note_left([first])
    assert [job.args for _ in range(2) for job in claim(1, claimer)] == [["a", 1]]


def test_a_queue_with_a_limit_of_its_own_lets_keys_take_turns(settings):
    settings.JOBS = {**settings.JOBS, "QUEUES": {QUEUE: {"concurrency": 4, "weights": {"a": 2}}}}
    for key in "ab":
        bodies.of_a_customer.delay_many([(key, number) for number in range(10)])
    claimer = claims.claimer(None)
    assert Counter(job.fair_key for _ in range(9) for job in claim(1, claimer)) in ({"a": 3, "b": 1}, {"a": 2, "b": 2})


@pytest.mark.slow
def test_processes_side_by_side_are_fair_together():
    """Each has its own place among the keys, and no job is claimed twice."""
    for key in range(20):
        bodies.of_a_customer.delay_many([(f"k{key:02}", number) for number in range(20)])
    began = Barrier(4)

    def run() -> list[tuple[object, str]]:
        claimer, found = claims.claimer(None), []
        try:
            began.wait()
            while len(found) < 50:
                found += [(job.pk, job.fair_key) for job in claim(1, claimer)]
        finally:
            connections.close_all()
        return found

    with ThreadPoolExecutor(4) as pool:
        found = [each for future in [pool.submit(run) for _ in range(4)] for each in future.result(60)]
    assert len({pk for pk, _ in found}) == len(found)
    counts = Counter(key for _, key in found)
    assert max(counts.values()) - min(counts[f"k{key:02}"] for key in range(20)) <= 4, counts


@pytest.mark.slow
def test_a_worker_runs_the_first_job_of_another_before_a_backlog():
    """With real workers: two processes of two workers."""
    bodies.of_a_customer.delay_many([("big", number) for number in range(3000)])
    bodies.of_a_customer.delay("small")
    with Worker("-Q", QUEUE, concurrency=2), Worker("-Q", QUEUE, concurrency=2):
        wait_for(lambda: Job.objects.filter(fair_key="small", state="succeeded").exists(), 60, "the small one's job")
        left = Job.objects.filter(fair_key="big", state="ready").count()
    assert left > 1500


@pytest.mark.database
@pytest.mark.parametrize("queue", ["{celery}", "a{}", "a{0}", "mail{{x}}"])
@pytest.mark.parametrize("task", [bodies.of_a_customer, bodies.one_of_a_customer], ids=["plain", "limited"])
def test_the_name_of_a_queue_may_have_braces(task, queue):
    claimer = claims.claimer(None)
    for size in (1, 10):
        task.apply_async(("ada",), queue=queue)
        assert len(claimer.claim("default", queue, worker_state.node, size)) == 1
        Job.objects.all().delete()
