"""Events: told with the commit, handled exactly once."""

from __future__ import annotations

import datetime
import io
import json
import multiprocessing
import signal
import time
import uuid
from typing import Any

import pytest
from celery import current_app
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, transaction
from django.db.models import F
from django.utils import timezone

from jobs.contrib.operations import by_hand
from jobs.contrib.operations.actions import RunNow
from jobs.contrib.pruning.prune import FULL_WALK, Prune
from jobs.contrib.why import explain as why
from jobs.events import event, handler, order, prune, relay
from jobs.events.models import Event, Relay, Subscription
from jobs.events.relay import RelayThread
from jobs.lifecycle import transitions
from jobs.maintenance import clock, rescue
from jobs.models import LIVE, Action, Job, Node
from jobs.store import databases
from jobs.testing import run_jobs
from tests.contrib.events import tasks as told
from tests.helpers.concurrency import Elsewhere, open_transaction, somebody_waits
from tests.helpers.harness import Worker, effects, wait_reached
from tests.helpers.routers import Primary
from tests.helpers.rows import make
from tests.helpers.servers import wait_for
from tests.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)

DAY = datetime.timedelta(days=1)

NOTE, ALL, MOVED, LOST = (f"tests.contrib.events.tasks.note_{name}" for name in ("made", "all", "moved", "lost"))


def handled(name: str) -> list[str]:
    return list(
        Job.objects.filter(task=f"tests.contrib.events.tasks.{name}").order_by("id").values_list("state", flat=True)
    )


def test_an_event_is_a_row_of_the_transaction_and_each_handler_gets_a_job():
    with pytest.raises(RuntimeError), transaction.atomic():
        told.thing_made("gone")
        raise RuntimeError
    assert not Event.objects.exists()
    key = told.thing_made("a", at=timezone.now())
    [row] = Event.objects.all()
    assert (row.uuid, row.name, row.version, row.source, row.relayed_at) == (key, "test.thing.made", 1, "shop", None)
    ran = run_jobs()
    assert {job.task for job in ran} == {NOTE, ALL}
    assert {job.parent_id for job in ran} == {key}
    assert sorted(effects()) == ["all:a:", "made:a"]
    row.refresh_from_db()
    assert row.relayed_at is not None
    assert run_jobs() == [], "handed on once"


def test_two_workers_that_are_the_first_ones_write_their_handlers():
    """The other one's row is committed between two looks of this one."""
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer")
    made: list[Any] = []

    def commit_theirs(execute, sql, *more):
        found = execute(sql, *more)
        if not made and sql.startswith("SELECT") and "jobs_event_relay" in sql:
            made.append(Elsewhere(lambda: Relay.objects.create(pk=1)).result())
        return found

    with transaction.atomic(), connection.execute_wrapper(commit_theirs):
        assert relay.lock("default").pk == 1
    assert [each.pk for each in made] == [1]


def test_the_handler_has_the_types_of_its_annotations_and_the_event():
    told.thing_made("a", at=timezone.now())
    run_jobs()
    assert Effect.objects.get(key="made:a").note == "test.thing.made datetime"
    told.note_all(name="plain")
    assert "all:plain:" in effects()
    told.note_all.delay(name="job")
    run_jobs()
    assert "all:job:" in effects()


def test_what_does_not_fit_is_refused_where_it_is_told():
    for call, says in [
        (lambda: told.thing_made(5), "name: expected str, found int"),
        (lambda: told.thing_made("a", att=None), "no parameter att: did you mean `at`"),
        (lambda: told.thing_made(), "missing"),
        (lambda: told.thing_made("a", at=datetime.datetime(2026, 1, 1)), "naive"),
        (lambda: told.thing_made(""), "a thing has a name"),
    ]:
        with pytest.raises((TypeError, ValueError), match=says):
            call()
    assert not Event.objects.exists()


def test_a_handler_with_retries_is_tried_again_after_any_exception(monkeypatch):
    assert told.note_all.autoretry_for == (Exception,)
    assert told.note_all.max_retries == 3
    with pytest.raises(TypeError, match="expires= has no meaning"):
        handler("a.b", expires=5)


@pytest.mark.parametrize("name", ["", "ä.b", "x" * 201, "with space", "a..b", ".a", "a.*", 5])
def test_a_name_that_no_exchange_routes_is_refused(name):
    with pytest.raises(ValueError, match="words with dots"):
        event(name)


def test_a_pattern_is_that_of_a_topic_exchange():
    for pattern, name, fits in [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.#", "a.b.c", True),
        ("a.#", "a", True),
        ("a.#", "ab", False),
        ("#.c", "a.b.c", True),
        ("a.#.c", "a.c", True),
        ("#", "a", True),
        ("*.b", "a.b", True),
        ("a.b", "a.bc", False),
        ("a.b", "axb", False),
    ]:
        assert relay.matches(pattern, name) == fits, (pattern, name)
    with pytest.raises(ValueError, match="give an event's name"):
        handler("a b")


def test_no_pattern_holds_the_interpreter():
    """Another service may send any: with backtracking this one would take longer than the world lasts."""
    words = "a." * 99 + "b"
    child = multiprocessing.get_context("fork").Process(target=relay.matches, args=("#." * 99 + "c", words))
    child.start()
    child.join(60)
    is_alive = child.is_alive()
    child.kill()
    child.join()
    assert not is_alive
    assert relay.matches("#." * 99 + "b", words)
    assert relay.matches("#.a.*.a.#.b.#", words)


@pytest.mark.parametrize("option", [{"version": "1"}, {"version": 0}, {"retries": -1}, {"keep_failed": 2**31}])
def test_options_of_a_handler_that_no_row_could_keep_are_refused(option):
    with pytest.raises(ValueError, match="must be a whole number from"):
        handler("a.b", **option)


def test_a_version_that_no_handler_understands_makes_no_job():
    told.thing_lost("a")
    assert {job.task for job in run_jobs()} == {ALL}


def test_events_of_one_key_are_handled_in_their_order_also_while_one_is_tried_again():
    for number in range(6):
        for name in ("flaky", "b"):
            told.thing_moved(name, number)
    run_jobs(until=timezone.now() + datetime.timedelta(hours=1))
    keys = [key for key in effects() if key.startswith("moved:")]
    for name in ("flaky", "b"):
        assert [key for key in keys if f":{name}:" in key] == [f"moved:{name}:{number}" for number in range(6)]
    assert set(handled("note_moved")) == {"succeeded"}


@pytest.mark.database
def test_two_that_tell_of_the_same_key_are_in_the_order_of_their_commits():
    """The second one waits for the end of the first, whoever has updated what before."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    with transaction.atomic():
        told.thing_moved("a", 1)
        other = Elsewhere(lambda: told.thing_moved("a", 2))
        Elsewhere(lambda: told.thing_moved("b", 1)).result()
        wait_for(somebody_waits, 10, "the other transaction waits")
    other.result()
    assert [row.data["number"] for row in Event.objects.filter(data__name="a").order_by("id")] == [1, 2]


def moved() -> list[str]:
    """What was done about things that moved, in its order."""
    return [key for key in Effect.objects.order_by("pk").values_list("key", flat=True) if key.startswith("moved:")]


def tell_of_moves(names: list[str], count: int) -> None:
    for number in range(count):
        for name in names:
            told.thing_moved(name, number)


def assert_in_order(names: list[str], count: int) -> None:
    found = moved()
    assert sorted(found) == sorted(f"moved:{name}:{number}" for name in names for number in range(count))
    for name in names:
        assert [key for key in found if f":{name}:" in key] == [f"moved:{name}:{number}" for number in range(count)]


@pytest.mark.database
def test_workers_handle_each_event_once_and_those_of_a_key_in_their_order():
    names = ["flaky1", "flaky2", "a", "b"]
    with Worker(concurrency=2), Worker(concurrency=2):
        tell_of_moves(names, 25)
        wait_for(lambda: len(moved()) >= 100, 60, "all are handled")
        wait_for(lambda: not Job.objects.filter(state__in=LIVE).exists(), 30, "all jobs have ended")
    assert_in_order(names, 25)
    assert sum(count for key, count in effects().items() if key.startswith("all:")) == 100


@pytest.mark.slow
@pytest.mark.database
@pytest.mark.parametrize("point", ["before_relay", "after_relay", "before_commit", "after_completion", "after_commit"])
def test_a_kill_loses_no_event_and_handles_none_twice(point):
    """After the end of a job and before the next of its key is let in, another worker does that."""
    with Worker(concurrency=1, sync=f"{point}=pause") as worker:
        tell_of_moves(["a"], 5)
        wait_reached(worker.directory, point)
        worker.kill()
    with Worker(concurrency=2):
        wait_for(lambda: len(moved()) >= 5, 40, "all are handled")
        wait_for(lambda: not Job.objects.filter(state__in=LIVE).exists(), 30, "all jobs have ended")
    assert_in_order(["a"], 5)


@pytest.mark.slow
@pytest.mark.database
def test_one_that_hands_on_and_stands_still_keeps_the_others_from_it_for_a_moment_only():
    with Worker(concurrency=1, sync="before_relay=stop") as still:
        told.thing_made("a")
        wait_reached(still.directory, "before_relay")
        if connection.vendor == "sqlite":
            # One writer: nobody writes anything until it goes on.
            still.signal(signal.SIGCONT)
        with Worker(concurrency=1):
            wait_for(lambda: len(effects()) == 2, 30, "the other one hands it on")
            still.signal(signal.SIGCONT)
            wait_for(lambda: not Job.objects.filter(state__in=LIVE).exists(), 30, "all jobs have ended")
    assert sorted(effects().items()) == [("all:a:", 1), ("made:a", 1)]


def test_a_worker_that_was_taken_for_dead_tells_of_its_handlers_again():
    """Others may have forgotten them meanwhile."""
    with Worker(concurrency=1) as worker:
        wait_for(Subscription.objects.exists, 20, "it has told of them")
        Subscription.objects.all().delete()
        rescue.bury(worker.node.pk)
        wait_for(Subscription.objects.exists, 20, "it tells of them again")


def lost() -> Subscription:
    return Subscription.objects.get(handler=LOST)


def test_an_old_worker_that_registers_again_takes_no_newer_subscription_back():
    """A rolling deploy: else events of the new version are handed on, and nobody handles them."""
    with Worker(concurrency=1) as old:
        wait_for(Subscription.objects.exists, 20, "it has told of its handlers")
        # Two that begin in the same second are of one age.
        wait_for(lambda: timezone.now() > lost().defined_at + databases.SAME, 5, "what begins now is newer")
        with Worker(concurrency=1, TEST_LOST_VERSION="2"):
            wait_for(lambda: lost().version == 2, 20, "the new one has told of its handlers")
            rescue.bury(old.node.pk)
            wait_for(lambda: "as a newer worker says" in old.text() or lost().version == 1, 30, "the old one registers")
            key = told.thing_lost("a")
            wait_for(lambda: Event.objects.filter(uuid=key).exclude(relayed_at=None).exists(), 20, "it is handed on")
    assert lost().version == 2
    assert Job.objects.filter(task=LOST).count() == 1


def test_a_subscription_goes_back_to_an_old_worker_when_no_newer_one_is_left():
    """A deploy that was given up: the old workers were there all the while."""
    app, now = current_app._get_current_object(), databases.clock("default")
    relay.subscribe(app, "default")
    ahead = now + datetime.timedelta(minutes=1)
    Subscription.objects.filter(handler=LOST).update(version=2, defined_at=ahead)
    relay.subscribe(app, "default")
    assert lost().version == 2
    Subscription.objects.filter(handler=LOST).update(seen_at=now - datetime.timedelta(seconds=relay.LEFT + 1))
    relay.subscribe(app, "default")
    assert lost().version == 1
    assert [version for _, version, _ in lost().before] == [2]


def test_a_subscription_is_seen_and_told_of_again_by_each_worker_once_a_minute(node, monkeypatch):
    """So the others know that its code is there; and one that an older worker has taken back meanwhile is put right."""
    post, app = RelayThread(), current_app._get_current_object()
    post.run_once()
    Subscription.objects.filter(handler=LOST).update(version=2, seen_at=timezone.now() - datetime.timedelta(hours=1))
    post.run_once()
    assert lost().version == 2, "not each time that it looks for events"
    monkeypatch.setattr(post, "_look_at", 0.0)
    post.run_once()
    assert lost().version == app.tasks[LOST].subscribes["version"]
    assert lost().seen_at > timezone.now() - datetime.timedelta(minutes=30)


def test_a_handler_is_forgotten_when_no_worker_has_known_it_for_long():
    relay.subscribe(current_app._get_current_object(), "default")
    Node.objects.create(tasks=[ALL], pid=1)
    away = Node.objects.create(tasks=[NOTE], pid=2, dead_at=timezone.now() - datetime.timedelta(minutes=30))
    relay.forget_gone("default")
    assert set(Subscription.objects.values_list("handler", flat=True)) == {ALL, NOTE}
    Node.objects.filter(pk=away.pk).update(dead_at=timezone.now() - datetime.timedelta(hours=2))
    relay.forget_gone("default")
    assert set(Subscription.objects.values_list("handler", flat=True)) == {ALL}


@pytest.mark.database
def test_a_handler_that_is_told_of_while_others_get_their_events_can_have_them_replayed(monkeypatch):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    app, others = current_app._get_current_object(), []
    relay.subscribe(app, "default")
    Subscription.objects.filter(handler=NOTE).delete()
    told.thing_made("a")

    def make_jobs(*args: Any, make_jobs: Any = relay.make_jobs) -> Any:
        found = make_jobs(*args)
        others.append(Elsewhere(RelayThread().run_once))
        wait_for(lambda: somebody_waits() or others[0].outcome, 10, "it has told of them, or waits")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(relay, "make_jobs", make_jobs)
        relay.hand_on(app, "default")
    others[0].result()
    assert not Job.objects.filter(task=NOTE).exists()
    assert command("replay", "--to", "shop", "--type", "test.#")["jobs"] == 1


def command(*args: str) -> Any:
    out = io.StringIO()
    call_command("jobs", "events", *args, "--json", stdout=out)
    return json.loads(out.getvalue())


def test_a_plain_call_in_a_handler_has_the_types_that_it_was_given():
    now, seen = timezone.now(), []

    @handler("test.thing.never", bind=True)
    def typed(self, at: datetime.datetime) -> None:
        seen.append((at, self.event))

    @handler("test.thing.lost")
    def calls(name: str) -> None:
        typed(at=now)

    try:
        told.thing_lost("a")
        run_jobs()
    finally:
        for task in (typed, calls):
            current_app.tasks.unregister(task.name)
    assert seen == [(now, None)]


def test_an_event_that_is_too_large_is_refused_when_it_is_told(settings):
    settings.JOBS = {**settings.JOBS, "MAX_ARGS_BYTES": 100}
    with pytest.raises(ValueError, match=r"the event test.thing.made has \d+ bytes of JSON, more than JOBS"):
        told.thing_made("x" * 100)
    assert not Event.objects.exists()


def test_what_waits_behind_others_of_its_key_says_so():
    for number in range(3):
        told.thing_moved("a", number)
    app = current_app._get_current_object()
    relay.subscribe(app, "default")
    relay.hand_on(app, "default")
    jobs = Job.objects.filter(task=MOVED)
    first, second, third = jobs.get(order_position=None), *jobs.exclude(order_position=None).order_by("order_position")
    found = why.explain(third.pk)[1][0]
    assert (found.code, found.evidence["job"], found.evidence["ahead"]) == ("in_order", str(first.pk), 1)
    first.delete()
    assert order.release_stuck("default") == 1
    second.refresh_from_db()
    assert (second.state, second.order_position) == ("ready", None)


def in_line() -> list[Job]:
    """Three jobs of one order key, the first of which is let in."""
    for number in range(3):
        told.thing_moved("a", number)
    app = current_app._get_current_object()
    relay.subscribe(app, "default")
    relay.hand_on(app, "default")
    return list(Job.objects.filter(task=MOVED).order_by(F("order_position").asc(nulls_first=True)))


def out() -> list[Any]:
    return list(Job.objects.filter(task=MOVED, state__in=["ready", "running"]).values_list("pk", flat=True))


def test_what_fails_at_lines_that_stand_still_keeps_no_job_from_coming_due(monkeypatch):
    """A role's statement_timeout may end that look, at every tick."""
    due = make("scheduled", age=1)
    make("scheduled", order_key="k", order_position=1, age=-9999)

    def too_long(using):
        looked.append(using)
        raise OperationalError("statement timeout")

    looked: list[str] = []
    monkeypatch.setattr(order, "release_stuck", too_long)
    order._seldom.clear()
    clock.tick()
    assert Job.objects.get(pk=due.pk).state == "ready"
    assert looked == ["default"]


def test_an_order_key_is_a_name_whatever_the_server_makes_of_backslashes():
    """With ``standard_conforming_strings`` off a backslash escapes the quote after it."""
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL only")
    in_line()
    with connection.cursor() as cursor:
        cursor.execute("SET standard_conforming_strings = off")
    try:
        assert order.release("default", ["\\' OR true --"]) == 0
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET standard_conforming_strings")


def test_what_waits_behind_others_is_not_run_now_by_hand():
    first, _, third = in_line()
    assert not RunNow().attempt(third.pk).is_done
    assert out() == [first.pk]


def test_one_that_is_tried_again_is_not_let_in_beside_the_one_that_just_was():
    """Two look at the same moment, each at another one."""
    first, second, _ = in_line()
    transitions.cancel(first.pk, "default")
    with open_transaction(lambda: order.release("default", [second.order_key])):
        other = Elsewhere(lambda: by_hand.retry_by_hand(first.pk, "default"))
        wait_for(lambda: somebody_waits() or other.outcome, 20, "it looks as well")
    other.result()
    assert out() == [second.pk]


def test_a_release_that_waits_for_a_row_keeps_others_out():
    """Race: a job comes to the head of the line meanwhile. Without the lock both would let one in."""
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL says who waits")
    waiting = {"order_key": "k", "run_at": "9999-01-01T00:00:00Z"}
    row = Job.objects.filter(pk=make("scheduled", order_position=5, **waiting).pk)
    locks = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with open_transaction(lambda: row.update(priority=1), commits=False):
        one = Elsewhere(lambda: order.release("default", ["k"]))
        wait_for(lambda: databases.ask("default", locks) == [(1,)], 20, "it waits for the row")
        make("scheduled", order_position=1, **waiting)
        two = Elsewhere(lambda: order.release("default", ["k"]))
        wait_for(lambda: databases.ask("default", locks) == [(2,)] or two.outcome, 20, "the other one waits for it")
    assert one.result() + two.result() == 1
    assert Job.objects.filter(order_key="k", state="ready").count() == 1


@pytest.mark.parametrize("which", [0, 1])
def test_a_retry_by_hand_waits_for_its_turn_and_is_the_next(which):
    jobs = in_line()
    transitions.cancel(jobs[which].pk, "default")
    order.release_stuck("default")
    is_out = out()
    by_hand.retry_by_hand(jobs[which].pk, "default")
    assert out() == is_out, "no second one of its key"
    run_jobs()
    assert moved() == [f"moved:a:{number}" for number in ([1, 0, 2] if which == 0 else [0, 1, 2])]


def test_a_retry_by_hand_that_nobody_is_before_runs_at_once():
    jobs = in_line()
    for job in jobs:
        transitions.cancel(job.pk, "default")
    for job in jobs[::-1]:
        by_hand.retry_by_hand(job.pk, "default")
    assert out() == [jobs[2].pk]
    run_jobs()
    assert moved() == ["moved:a:2", "moved:a:0", "moved:a:1"]


@pytest.mark.database
def test_a_retry_by_hand_while_the_next_event_is_handed_on_lets_only_one_of_them_in(monkeypatch):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    jobs, others = in_line(), []
    for job in jobs:
        transitions.cancel(job.pk, "default")
    told.thing_moved("a", 3)

    def make_jobs(*args: Any, make_jobs: Any = relay.make_jobs) -> Any:
        found = make_jobs(*args)
        others.append(Elsewhere(lambda: by_hand.retry_by_hand(jobs[0].pk, "default")))
        wait_for(lambda: somebody_waits() or others[0].outcome, 10, "it is retried, or waits")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(relay, "make_jobs", make_jobs)
        relay.hand_on(current_app._get_current_object(), "default")
    assert others[0].result() is True
    assert len(out()) == 1


def test_a_service_that_was_renamed_handles_each_event_once(settings):
    relay.subscribe(current_app._get_current_object(), "default")
    settings.JOBS = {**settings.JOBS, "SERVICE": "renamed"}
    told.thing_made("a")
    run_jobs()
    assert {row.service for row in Subscription.objects.all()} == {"shop", "renamed"}
    assert effects() == {"made:a": 1, "all:a:": 1}


def test_a_replay_gives_a_new_handler_what_it_missed_and_nobody_else_anything():
    told.thing_made("a")
    told.thing_made("b")
    run_jobs()
    # It subscribes from now on.
    Subscription.objects.filter(handler=NOTE).update(since=timezone.now())
    Job.objects.filter(task=NOTE).delete()
    assert command("replay", "--to", "shop", "--type", "test.#", "--dry-run")["jobs"] == 0
    with pytest.raises(CommandError, match="no service 'shap'.*shop"):
        command("replay", "--to", "shap", "--type", "test.#", "--dry-run")
    assert command("replay", "--to", "shop", "--type", "test.#")["jobs"] == 2
    run_jobs()
    assert effects()["made:a"] == effects()["made:b"] == 2
    assert effects()["all:a:"] == 1
    assert command("replay", "--to", "shop", "--type", "test.#")["jobs"] == 0


def test_with_again_all_is_handled_once_more_and_once_for_each_number():
    key = told.thing_made("a")
    run_jobs()
    for _ in range(2):
        command("replay", str(key), "--to", "shop", "--again", "--number", "n1")
        run_jobs()
    assert effects() == {"made:a": 2, "all:a:": 2}
    command("replay", str(key), "--to", "shop", "--again")
    run_jobs()
    assert effects() == {"made:a": 3, "all:a:": 3}


def test_a_replay_leaves_out_what_comes_by_itself():
    relay.subscribe(current_app._get_current_object(), "default")
    told.thing_made("a")
    for more in ((), ("--again",)):
        assert command("replay", "--to", "shop", "--type", "test.#", *more)["jobs"] == 0
    run_jobs()
    assert effects() == {"made:a": 1, "all:a:": 1}


def test_a_replay_is_for_one_service_that_there_is():
    told.thing_made("a")
    run_jobs()
    for args, says in [
        (["--type", "#"], "to which service"),
        (["--to", "shop"], "which events"),
        (["--to", "shp", "--since", "1h"], "did you mean `shop`"),
        (["--to", "shop", "--since", "yesterdy"], "no moment"),
        (["xyz", "--to", "shop"], "no id of an event"),
        (["--to", "shop", "--type", "test.#", "--since", ""], "cannot be empty"),
    ]:
        with pytest.raises(CommandError, match=says):
            command("replay", *args)


def test_the_command_lists_and_shows():
    first, second = told.thing_made("a"), told.thing_lost("b")
    listed = [(each["id"], each["state"]) for each in command("list")]
    assert listed == [(str(second), "waiting"), (str(first), "waiting")]
    run_jobs()
    assert [each["id"] for each in command("list", "--type", "test.*.made")] == [str(first)]
    found = command("show", str(first))
    assert (found["data"], found["state"]) == ({"name": "a", "at": None}, "handed on")
    assert {each["handler"] for each in found["handlers"]} == {NOTE, ALL}
    with pytest.raises(CommandError, match="no event"):
        command("show", str(uuid.uuid4()))


def test_the_command_says_that_no_job_handles_an_event(capsys):
    key = told.thing_made("a")
    call_command("jobs", "events", "show", str(key))
    assert "No job handles it in this database." in capsys.readouterr().out
    run_jobs()
    call_command("jobs", "events", "show", str(key))
    assert "No job handles it" not in capsys.readouterr().out


def test_the_schemas_are_written(tmp_path):
    command("schema", "--dir", str(tmp_path))
    schema = json.loads((tmp_path / "test.thing.moved.v1.json").read_text())
    assert (schema["properties"]["number"], schema["required"]) == ({"type": "integer"}, ["name", "number"])


def test_no_schema_is_left_out_in_silence(monkeypatch, tmp_path):
    def fails(app):
        raise ModuleNotFoundError("No module named 'stripe'")

    # In this order: the module of the commands takes the name from the other one, and might keep the wrong one.
    monkeypatch.setattr("jobs.contrib.event_operator.commands.import_tasks", fails)
    monkeypatch.setattr("jobs.conf.import_tasks", fails)
    with pytest.raises(ModuleNotFoundError, match="stripe"):
        command("schema", "--dir", str(tmp_path))
    assert not [*tmp_path.iterdir()]


def test_events_are_forgotten_when_they_are_old_and_were_handed_on(settings):
    settings.JOBS = {**settings.JOBS, "RETENTION_EVENTS": 3600.0}
    told.thing_made("old")
    run_jobs()
    told.thing_made("waits")
    Event.objects.update(at=timezone.now() - datetime.timedelta(hours=2))
    told.thing_made("new")
    Action.objects.bulk_create(Action(job=row.uuid, what="replay") for row in Event.objects.all())
    Prune().run_once()
    assert [row.data["name"] for row in Event.objects.order_by("id")] == ["waits", "new"]
    kept = set(Event.objects.values_list("uuid", flat=True))
    assert set(Action.objects.values_list("job", flat=True)) == kept, "what people did goes with them"


def test_old_events_are_forgotten_behind_many_that_have_to_stay(settings):
    """However many: some are not published, others wait for an earlier one, or say that they happen in a century."""
    settings.JOBS = {**settings.JOBS, "RETENTION_EVENTS": 3600.0, "BATCH": 1}
    old, now = timezone.now() - datetime.timedelta(hours=2), timezone.now()
    about = {"name": "test.thing.made", "source": "shop", "at": old}
    unsent = [Event(**about, relayed_at=old, number=n) for n in range(30)]
    parked = [Event(**about, received_at=old, number=n) for n in range(100, 130)]
    done = [Event(**about, relayed_at=old, order_key="done") for _ in range(30)]
    odd = [Event(**{**about, "at": now + 100 * 365 * DAY}, received_at=old, relayed_at=old) for _ in range(30)]
    Event.objects.bulk_create([*unsent, *parked, *done, *odd])
    new = [Event(**{**about, "at": old}, received_at=now, relayed_at=now, order_key="new") for _ in range(20)]
    Event.objects.bulk_create(new)
    watch = Prune()
    watch.run_once()
    assert Event.objects.count() == 80, "a copy of what has just arrived, and happened long ago, is still recognized"
    assert Event.objects.filter(order_key="new").count() == 20
    Event.objects.update(sent_at=now)
    watch.run_once()
    assert Event.objects.count() == 80, "it walks on from where it was"
    prune._walks["default"] = (prune._walks["default"][0], time.monotonic() - FULL_WALK - 1)
    watch.run_once()
    watch.run_once()
    assert Event.objects.count() == 50, "and now and then through all of them"


def test_of_what_a_handler_failed_at_the_newest_are_kept():
    relay.subscribe(current_app._get_current_object(), "default")
    Subscription.objects.filter(handler=NOTE).update(keep_failed=2)
    jobs = [make("failed", task=NOTE, age=10 - number) for number in range(5)]
    other = make("failed", task=ALL)
    Prune().run_once()
    assert set(Job.objects.values_list("pk", flat=True)) == {jobs[3].pk, jobs[4].pk, other.pk}


def test_events_reach_handlers_whose_modules_nobody_has_imported(monkeypatch):
    """Whoever runs jobs need not have met the handlers' tasks."""
    seen = []
    monkeypatch.setattr(relay, "import_tasks", lambda app: seen.append("imported"))
    monkeypatch.setattr(relay, "subscribe", lambda app, using: seen.append("registered"))
    run_jobs()
    assert seen == []
    told.thing_made("a")
    run_jobs()
    assert seen == ["imported", "registered"]


def test_a_broker_without_its_extension_is_an_error(settings, monkeypatch):
    settings.JOBS = {**settings.JOBS, "EVENT_BROKER": "amqp://127.0.0.1"}
    monkeypatch.setattr("jobs.events.services.extensions.modules", lambda name: iter(()))
    told.thing_moved("a", 1)
    with pytest.raises(ImproperlyConfigured, match="jobs.contrib.event_broker is not installed"):
        relay.hand_on(current_app, "default")


@event("test.user.joined")
def joined(user_id: int) -> None:
    pass


@handler("test.user.joined", bind=True)
async def asks(self, user_id: int):
    return self.commit(Effect.objects.create, key=f"asked {user_id}")


@handler("test.user.joined", bind=True)
def takes_all(self, **fields):
    Effect.objects.create(key=f"took {fields['user_id']}")


@handler("test.user.joined", tags={"user": "{user_id}"})
def welcomes(user_id: int):
    pass


def test_a_handler_may_be_async():
    joined(5)
    run_jobs(raises=False)
    assert effects()["asked 5"] == 1


def test_a_field_may_be_called_self():
    """Other services name it so: a link to what the event is about."""
    Event.objects.create(name="test.user.joined", source="jira", data={"user_id": 6, "self": "https://example.com"})
    run_jobs(raises=False)
    assert effects()["took 6"] == 1


def test_the_job_of_an_event_has_what_a_call_would_have():
    joined(5)
    run_jobs(raises=False)
    assert Job.objects.get(task=welcomes.name).tags == {"user": "5"}
    assert Job.objects.get(tags__have={"user": 5}).task == welcomes.name


def test_events_in_order_of_another_database_whatever_the_routers_say(second, settings, node):
    settings.DATABASE_ROUTERS = [Primary()]
    now = timezone.now()
    says = {"service": "shop", "handler": "h", "pattern": "x", "queue": "q", "is_ordered": True}
    Subscription.objects.using(second).create(**says, since=now, defined_at=now, seen_at=now)
    for _ in range(3):
        Event.objects.using(second).create(name="x", source="shop", data={}, order_key="k")
    assert relay.hand_on(current_app, second) == 3
    assert Relay.objects.using(second).get().place == 2
