"""The schedule: one job for each entry and tick, whoever looks, dies, stands still or has a wrong clock."""

from __future__ import annotations

import datetime
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from io import StringIO
from itertools import pairwise

import celery
import pytest
from celery import current_app
from celery.beat import BeatLazyFunc
from celery.schedules import crontab
from django.contrib.admin.models import LogEntry
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.contrib.checks import system as checks
from jobs.contrib.operator import problems, status
from jobs.contrib.schedules import entries, operations
from jobs.contrib.schedules import rows as schedules
from jobs.contrib.schedules.entries import NAME, TICK
from jobs.contrib.schedules.scheduler import GONE, LEFT, LOOK, Schedules, decide
from jobs.contrib.schedules.ticks import IN_TIME
from jobs.contrib.why import explain as why
from jobs.models import Action, Job, Schedule
from jobs.task import Task
from jobs.testing import run_jobs
from tests import tasks
from tests.faults.clock import clock
from tests.helpers import checked
from tests.helpers.harness import ROOT, Worker, environment, wait_reached
from tests.helpers.rows import let_heartbeat, make_node
from tests.helpers.servers import die_with_parent, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

SECOND = datetime.timedelta(seconds=1)
HOUR = 3600 * SECOND
EFFECT = tasks.effect.name


def noted() -> dict[str, str]:
    return {each.kind: each.text for each in problems.of(status.gather(live=True))}


@pytest.fixture
def beat():
    """Celery's schedule, for a test to fill in."""
    current_app.conf.beat_schedule = found = {}
    yield found
    current_app.conf.beat_schedule = {}


def entry(schedule=60.0, *args, **more) -> dict:
    return {"task": EFFECT, "schedule": schedule, "args": args or ("x",), **more}


def move(name: str, ago: datetime.timedelta) -> datetime.datetime:
    """Let the last tick of an entry be so long ago; returns it."""
    row = Schedule.objects.get(pk=name)
    known = entries.gather(current_app)[0][name]
    row.last_tick = timezone.now() - ago
    row.next_tick = known.ticks.after(row.last_tick)
    row.save()
    return row.last_tick


def ticks_of(jobs=None) -> Counter:
    """How many jobs there are of each entry and tick."""
    jobs = Job.objects.all() if jobs is None else jobs
    return Counter((job.headers[NAME], job.headers[TICK]) for job in jobs)


def with_schedule(**entries_of) -> dict[str, str]:
    return {"JOBS_TEST_CELERY": json.dumps({"beat_schedule": entries_of})}


# The ticks


@pytest.mark.database
def test_an_entry_begins_when_it_is_first_seen(beat):
    beat["often"] = entry(60)
    worker = Schedules()
    assert worker.run_once() == {"ticks": 0, "missed": 0}
    row = Schedule.objects.get()
    assert (row.name, row.task, row.timing) == ("often", EFFECT, "every 1 min")
    assert row.next_tick - row.last_tick == 60 * SECOND
    assert 0 < worker.pause <= LOOK


@pytest.mark.database
def test_a_tick_makes_one_job_with_the_call_of_its_entry(beat):
    beat["often"] = entry(60, "a", kwargs={"note": "n"}, options={"queue": "mail", "priority": 7, "expires": 600})
    worker = Schedules()
    worker.run_once()
    tick = move("often", 61 * SECOND) + 60 * SECOND
    assert worker.run_once() == {"ticks": 1, "missed": 0}
    assert worker.run_once() == {"ticks": 0, "missed": 0}
    job = Job.objects.get()
    assert (job.task, job.args, job.kwargs, job.queue, job.priority) == (EFFECT, ["a"], {"note": "n"}, "mail", 7)
    assert job.headers == {NAME: "often", TICK: tick.isoformat()}
    assert job.expires_at - timezone.now() > 500 * SECOND
    row = Schedule.objects.get()
    assert (row.last_tick, row.last_run, row.last_job) == (tick, tick, job.pk)
    assert row.next_tick == tick + 60 * SECOND


@pytest.mark.database
def test_short_absences_lose_no_tick(beat):
    beat["often"] = entry(1)
    worker = Schedules()
    worker.run_once()
    move("often", 10.5 * SECOND)
    assert worker.run_once()["ticks"] == 10
    assert len(ticks_of()) == Job.objects.count() == 10


@pytest.mark.database
@pytest.mark.parametrize(("options", "made"), [({}, 1), ({"catch_up": False}, 0)], ids=["made up for", "skipped"])
def test_a_missed_tick_runs_once_late_or_is_skipped(beat, options, made):
    beat["hourly"] = entry(3600, options=options)
    worker = Schedules()
    worker.run_once()
    began = move("hourly", 10.5 * HOUR)
    assert worker.run_once() == {"ticks": made, "missed": 10}
    assert worker.run_once() == {"ticks": 0, "missed": 0}
    row = Schedule.objects.get()
    assert (row.missed, row.missed_at, row.next_tick) == (10, began + 10 * HOUR, began + 11 * HOUR)
    assert [job.headers[TICK] for job in Job.objects.all()] == [row.missed_at.isoformat()] * made
    [each] = schedules.gather(True)
    assert each["status"] == "missed"
    assert "missed its time" in noted()["schedule_missed"]
    # The next one in time ends it.
    Schedule.objects.update(last_run=row.next_tick)
    assert schedules.gather(True)[0]["status"] == "fine"


@pytest.mark.database
def test_many_who_look_at_once_make_one_job_for_each_tick(beat):
    for number in range(5):
        beat[f"e{number}"] = entry(60)
    Schedules().run_once()
    for name in beat:
        move(name, 61 * SECOND)
    gate, errors = threading.Barrier(6), []

    def look():
        try:
            worker = Schedules()
            gate.wait()
            for _ in range(4):
                worker.run_once()
        except Exception as exc:
            errors.append(exc)
        finally:
            connection.close()

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(name for name, _ in ticks_of()) == sorted(beat)
    assert set(ticks_of().values()) == {1}


def test_a_call_that_cannot_be_made_loses_its_tick_and_stops_nobody(beat):
    beat |= {"bad": entry(60, object()), "good": entry(60)}
    worker = Schedules()
    worker.run_once()
    for name in beat:
        move(name, 61 * SECOND)
    assert worker.run_once() == {"ticks": 1, "missed": 1}
    assert [name for name, _ in ticks_of()] == ["good"]
    bad = Schedule.objects.get(pk="bad")
    assert "TypeError" in bad.error
    assert bad.next_tick > timezone.now()
    assert "could not be made" in noted()["schedule_error"]


class Unusable(crontab):
    def __init__(self):
        super().__init__()

    def remaining_estimate(self, last_run_at):
        raise RuntimeError("no ticks")


@pytest.mark.parametrize(
    "wrong",
    [{"kwargs": {1: "a", "b": 2}}, {"options": {"headers": {(1, 2): 3}}}, {"schedule": Unusable()}],
    ids=["keys of several types", "a tuple as key", "no ticks"],
)
def test_an_entry_that_cannot_be_computed_stops_nobody(beat, wrong, caplog):
    beat |= {"a bad one": {**entry(60), **wrong}, "good": entry(60)}
    worker = Schedules()
    worker.run_once()
    Schedule.objects.filter(pk="good").update(last_tick=timezone.now() - 61 * SECOND, next_tick=timezone.now() - SECOND)
    for _ in range(2):
        worker.run_once()
    assert [name for name, _ in ticks_of()] == ["good"]
    assert [getattr(record, "action", "") for record in caplog.records].count("schedule_wrong") == 1


def test_an_entry_whose_ticks_cannot_be_computed_any_more_stops_nobody(beat, monkeypatch):
    beat |= {"a bad one": entry(crontab()), "good": entry(60)}
    worker = Schedules()
    worker.run_once()
    for name in beat:
        move(name, 61 * SECOND)
    monkeypatch.setattr(crontab, "remaining_estimate", Unusable.remaining_estimate)
    assert worker.run_once()["ticks"] == 1
    assert worker.run_once() == {"ticks": 0, "missed": 0}
    assert worker.pause > 0, "and it does not spin"
    assert [name for name, _ in ticks_of()] == ["good"]


def test_what_the_database_refuses_of_an_entry_loses_its_tick_and_not_those_to_come(beat, admin_client):
    beat["fixed"] = entry(60, options={"task_id": "0a1b2c3d-0000-4000-8000-000000000000"})
    worker = Schedules()
    worker.run_once()
    for done in ({"ticks": 1, "missed": 0}, {"ticks": 0, "missed": 1}):
        move("fixed", 61 * SECOND)
        assert worker.run_once() == done
    row = Schedule.objects.get()
    assert "IntegrityError" in row.error
    assert row.next_tick > timezone.now()
    data = {"action": "run_now", "_selected_action": "fixed"}
    answer = admin_client.post(reverse("admin:jobs_schedule_changelist"), data, follow=True)
    assert answer.status_code == 200
    with pytest.raises(CommandError):
        call_command("jobs", "schedule", "--run", "fixed", stdout=StringIO())


def test_what_celery_evaluates_at_the_call_is_evaluated_then(beat):
    beat["lazy"] = entry(60, BeatLazyFunc(lambda: "now"), kwargs={"note": BeatLazyFunc(str, 5)})
    known = entries.gather(current_app)[0]["lazy"]
    assert known.definition == entries.gather(current_app)[0]["lazy"].definition
    known.call(None)
    job = Job.objects.get()
    assert (job.args, job.kwargs) == (["now"], {"note": "5"})


def test_a_stock_task_is_sent_by_a_job_of_ours(beat, settings):
    settings.JOBS = {**settings.JOBS, "EXCLUDE": [EFFECT]}
    beat |= {"stock": entry(60, options={"queue": "mail"}), "unknown": entry(60) | {"task": "elsewhere.task"}}
    Schedules().run_once()
    for name in beat:
        move(name, 61 * SECOND)
    Schedules().run_once()
    jobs = Job.objects.order_by("pk")
    assert [job.task for job in jobs] == ["jobs.send"] * 2
    assert {job.args[0] for job in jobs} == {EFFECT, "elsewhere.task"}
    assert {job.args[3].get("queue") for job in jobs} == {"mail", None}


def test_no_entries_cost_no_statement(beat):
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert Schedules().run_once() == {"ticks": 0, "missed": 0}
    assert len(queries) == 0


@pytest.mark.database
def test_a_look_is_one_statement(beat):
    for number in range(20):
        beat[f"e{number}"] = entry(600)
    worker = Schedules()
    worker.run_once()
    with CaptureQueriesContext(connection) as queries:
        worker.run_once()
    assert len(queries) == 1


# Who defines them


def test_every_of_a_task_is_an_entry():
    @current_app.task(base=Task, name="tests.every", shared=False, every=crontab(hour=3, minute=0), catch_up=False)
    def every(key="k"):
        """Nightly."""

    try:
        found, wrong = entries.gather(current_app)
        assert (str(found["tests.every"].ticks).split(" (")[0], found["tests.every"].catch_up) == ("0 3 * * *", False)
        assert wrong == []
    finally:
        current_app.tasks.unregister("tests.every")


@pytest.mark.parametrize(
    ("options", "says"),
    [({"every": "hourly"}, "must be seconds, a timedelta, a crontab"), ({"every": 60}, "without arguments")],
)
def test_an_every_that_cannot_work_fails_where_it_is_written(options, says):
    app = celery.Celery("other", set_as_current=False)
    with pytest.raises((TypeError, ValueError), match=says):

        @app.task(base=Task, name="tests.wrong", lazy=False, shared=False, **options)
        def wrong(key):
            """Needs its argument."""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (entry("soon"), "must be seconds"),
        (entry(60, catch_up=False), "belongs into its options"),
        (entry(60, timing=1), "no key 'timing'"),
        (entry(60, options={"catch_up": "no"}), "catch_up='no' must be True or False"),
        (entry(1e12), "a hundred years at the most"),
        ({"schedule": 60}, "task"),
    ],
)
def test_an_entry_that_cannot_be_kept_is_left_out_and_said(beat, given, says):
    beat |= {"wrong": given, "right": entry(60)}
    found, wrong = entries.gather(current_app)
    assert set(found) == {"right"}
    assert says in wrong[0]
    assert any(each.id == "jobs.W023" and says in each.msg for each in checks.check_celery(current_app))


def test_an_entry_that_calls_what_is_not_there_is_said(beat):
    beat["typo"] = entry(60) | {"task": EFFECT[:-1]}
    beat["empty"] = entry(60) | {"args": ()}
    beat["right"] = entry(60)
    [message] = [each for each in checks.check_tasks(current_app) if each.id == "jobs.W024"]
    assert f"'typo': no task of this project is called '{EFFECT[:-1]}': did you mean `{EFFECT}`" in message.msg
    assert "'empty': effect() missing" in message.msg
    assert "'right'" not in message.msg


def test_a_name_that_is_too_long_is_said(beat):
    beat["n" * 256] = entry(60)
    assert "1 to 255 characters" in entries.gather(current_app)[1][0]


def test_the_schedule_can_be_left_to_celery_beat(beat, settings):
    beat["often"] = entry(1)
    settings.JOBS = {**settings.JOBS, "SCHEDULES": None}
    assert entries.gather(current_app) == ({}, [])


def test_results_that_are_kept_elsewhere_are_cleaned_up(monkeypatch):
    app = celery.Celery("other", backend="file:///tmp", set_as_current=False, autofinalize=True)
    assert set(entries.gather(app)[0]) == {"celery.backend_cleanup"}
    assert entries.gather(celery.Celery("none", set_as_current=False))[0] == {}


def changed(beat, name, **more) -> Schedules:
    """A worker that begins now, of code in which the entry is another one."""
    beat[name] = {**beat[name], **more}
    return Schedules(since=time.monotonic())


@pytest.mark.database
def test_the_newest_worker_says_what_an_entry_is(beat):
    beat["e"] = entry(60, "old")
    old = Schedules()
    old.run_once()
    new = changed(beat, "e", args=("new",))
    new.run_once()
    move("e", 61 * SECOND)
    assert old.run_once()["ticks"] == 0, "it would make the job of the old code"
    assert new.run_once()["ticks"] == 1
    assert Job.objects.get().args == ["new"]
    # When nobody of the new code is there any more, the old one goes on.
    Schedule.objects.update(seen_at=timezone.now() - 2 * GONE * SECOND)
    move("e", 61 * SECOND)
    old.run_once()
    assert [job.args for job in Job.objects.order_by("pk")] == [["new"], ["old"]]


@pytest.mark.database
def test_a_changed_time_brings_no_burst_and_a_changed_call_loses_no_tick(beat):
    beat["e"] = entry(3600)
    Schedules().run_once()
    # Not a whole number of the new intervals, or the next tick is due at this very moment.
    move("e", 3007 * SECOND)
    assert changed(beat, "e", schedule=60).run_once() == {"ticks": 0, "missed": 0}
    assert timezone.now() < Schedule.objects.get().next_tick < timezone.now() + 61 * SECOND
    move("e", 61 * SECOND)
    assert changed(beat, "e", args=("y",)).run_once() == {"ticks": 1, "missed": 0}
    assert Job.objects.get().args == ["y"]


@pytest.mark.database
def test_an_entry_that_left_and_came_back_begins_anew(beat):
    beat |= {"e": entry(60), "other": entry(60)}
    Schedules().run_once()
    beat.pop("e")
    # Not a whole number of its intervals, or its next tick is due at this very moment.
    left = (2 * LEFT + 7) * SECOND
    Schedule.objects.filter(pk="e").update(seen_at=timezone.now() - left)
    assert schedules.status(Schedule.objects.annotate(now=schedules.Now()).get(pk="e"), True) == "undefined"
    Schedules().run_once()
    assert Schedule.objects.get(pk="e").next_tick is None
    beat["e"] = entry(60)
    Schedule.objects.filter(pk="e").update(last_tick=timezone.now() - left)
    assert Schedules().run_once() == {"ticks": 0, "missed": 0}
    assert Schedule.objects.get(pk="e").next_tick > timezone.now()


# What people do and see


@pytest.mark.database
def test_a_paused_entry_makes_no_job_and_misses_nothing(beat):
    beat["e"] = entry(60)
    worker = Schedules()
    worker.run_once()
    assert operations.pause("e", "ann", "the warehouse is moved")
    assert not operations.pause("e")
    move("e", HOUR)
    assert worker.run_once() == {"ticks": 0, "missed": 0}
    [each] = schedules.gather(True)
    assert (each["status"], each["paused_by"], each["reason"]) == ("paused", "ann", "the warehouse is moved")
    [remark] = [each for each in problems.of(status.gather(live=True)) if each.kind != "no_worker"]
    assert (
        remark.line == "the schedule e is paused by ann (the warehouse is moved); manage.py jobs schedule --resume 'e'"
    )
    assert operations.resume("e")
    assert not operations.resume("e")
    assert worker.run_once() == {"ticks": 0, "missed": 0}
    row = Schedule.objects.get()
    assert timezone.now() < row.next_tick <= timezone.now() + 60 * SECOND
    move("e", 61 * SECOND)
    assert worker.run_once()["ticks"] == 1


def test_run_now_makes_a_job_and_moves_no_tick(beat):
    beat["e"] = entry(3600)
    Schedules().run_once()
    before = Schedule.objects.get()
    key = operations.run("e", "ann", "the report is late")
    after = Schedule.objects.get()
    assert (after.last_tick, after.next_tick, after.last_job) == (before.last_tick, before.next_tick, key)
    action = Action.objects.get(job=key)
    assert (action.what, action.by, action.why) == ("run", "ann", "e: the report is late")
    assert "by hand, of the schedule e" in why.explain(key)[1][-1].says
    with pytest.raises(LookupError, match="'nobody'"):
        operations.run("nobody")


def test_why_says_which_tick_made_a_job(beat):
    beat["e"] = entry(60)
    Schedules().run_once()
    tick = move("e", 61 * SECOND) + 60 * SECOND
    Schedules().run_once()
    reason = why.explain(Job.objects.get().pk)[1][-1]
    assert (reason.code, reason.evidence) == ("schedule", {"name": "e", "tick": tick.isoformat()})
    operations.pause("e")
    assert "--resume 'e'" in why.explain(Job.objects.get().pk)[1][-1].cure


def test_an_overdue_entry_needs_attention(beat):
    beat["e"] = entry(60)
    Schedules().run_once()
    move("e", 60 * SECOND + IN_TIME + SECOND)
    assert "no worker has made its job" in noted()["schedule_overdue"]


def command(*args: str) -> str:
    out = StringIO()
    call_command("jobs", "schedule", *args, stdout=out, no_color=True)
    return out.getvalue()


def test_the_command(beat):
    assert "There is no entry" in command()
    beat["e"] = entry(60)
    Schedules().run_once()
    assert "every 1 min" in command()
    assert json.loads(command("--json"))[0]["status"] == "fine"
    assert "paused" in command("--pause", "e", "--reason", "why not")
    assert "is paused" in command()
    assert "resumed" in command("--resume", "e")
    assert json.loads(command("--run", "e", "--json"))["job"] == str(Job.objects.get().pk)
    for wrong in (["--pause", "x"], ["--run", "x"], ["--run", "e", "--pause", "e"], ["--resume", "e"]):
        with pytest.raises(CommandError):
            command(*wrong)


PAGE = reverse("admin:jobs_schedule_changelist")


def test_who_may_only_look_at_the_schedule_changes_nothing(beat, staff):
    beat["e"] = entry(60)
    Schedules().run_once()
    viewer = staff("view_schedule")
    assert "every 1 min" in viewer.get(PAGE).content.decode()
    viewer.post(PAGE, {"_selected_action": ["e"], "action": "pause"})
    assert Schedule.objects.get().paused_at is None


def test_the_page(beat, staff):
    beat["e"] = entry(60)
    Schedules().run_once()
    client = staff("view_schedule", "operate_schedule")
    data = {"_selected_action": ["e"]}
    client.post(PAGE, {**data, "action": "pause"})
    row = Schedule.objects.get()
    assert row.paused_at is not None
    assert row.paused_by == "ada"
    assert "paused" in client.get(reverse("admin:jobs_schedule_change", args=["e"])).content.decode()
    client.post(PAGE, {**data, "action": "resume"})
    assert Schedule.objects.get().paused_at is None
    client.post(PAGE, {**data, "action": "run_now"})
    assert str(Job.objects.get().pk)[-8:] in client.get(PAGE).content.decode()
    assert sorted(LogEntry.objects.values_list("change_message", flat=True)) == ["pause", "resume", "run"]


def test_only_an_entry_that_no_worker_has_can_be_deleted(beat, staff):
    beat["e"] = entry(60)
    Schedules().run_once()
    node = make_node()
    let_heartbeat(node)
    client = staff("view_schedule", "delete_schedule")
    url = reverse("admin:jobs_schedule_delete", args=["e"])
    assert client.post(url, {"post": "yes"}).status_code == 403
    Schedule.objects.update(seen_at=timezone.now() - 2 * GONE * SECOND)
    assert client.post(url, {"post": "yes"}).status_code == 302
    assert not Schedule.objects.exists()


# In a project's tests


def test_run_until_tomorrow_finds_the_nightly_job(beat):
    beat |= {"nightly": entry(crontab(hour=3, minute=0), "night"), "hourly": entry(3600, "hour")}
    ran = run_jobs(until=timezone.now() + 24 * HOUR + 60 * SECOND)
    assert Counter(job.args[0] for job in ran) == {"night": 1, "hour": 24}
    [night] = [job for job in ran if job.args == ["night"]]
    assert night.headers[TICK].endswith("T03:00:00+00:00")
    later = run_jobs(until=timezone.now() + 48 * HOUR + 60 * SECOND, schedules=["nightly"])
    assert [job.args for job in later] == [["night"]], "time goes on where it was"


def test_runs_without_a_time_or_without_the_schedule_make_no_ticks(beat):
    beat["often"] = entry(60)
    assert run_jobs() == []
    assert run_jobs(until=timezone.now() + HOUR, schedules=False) == []
    with pytest.raises(ValueError, match="there is no entry 'x'"):
        run_jobs(until=timezone.now() + HOUR, schedules=["x"])


# Real workers


def each_tick_once(name: str, least: int, every: datetime.timedelta) -> None:
    """Each tick has one job, and none is left out between the first and the last."""
    found = ticks_of(job for job in Job.objects.all() if job.headers.get(NAME) == name)
    assert set(found.values()) == {1}, [each for each in found.items() if each[1] > 1]
    moments = sorted(datetime.datetime.fromisoformat(tick) for _, tick in found)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert set(gaps) == {every}, Counter(gaps)
    assert len(moments) >= least


def made(name: str) -> int:
    return sum(job.headers.get(NAME) == name for job in Job.objects.only("options"))


@pytest.mark.database
def test_workers_run_the_schedule_in_time():
    env = with_schedule(second=entry(1.0, "second"))
    with Worker(concurrency=1, **env), Worker(concurrency=1, **env):
        wait_for(lambda: made("second") >= 6, 30, "six ticks")
    each_tick_once("second", 6, SECOND)
    late = [(job.created_at - datetime.datetime.fromisoformat(job.headers[TICK])) / SECOND for job in Job.objects.all()]
    # Of a busy machine nobody knows how late one of them comes.
    assert sorted(late)[len(late) // 2] < 0.5, late


def keep_killing(workers: list[Worker], seconds: float, **env: str) -> None:
    dice, until = random.Random(7), time.monotonic() + seconds
    while time.monotonic() < until:
        place = dice.randrange(len(workers))
        workers[place].kill()
        time.sleep(dice.uniform(0, 1))
        workers[place] = Worker(concurrency=1, wait=False, **env)
        time.sleep(dice.uniform(1, 4))


@pytest.mark.database
@pytest.mark.parametrize("seconds", [15, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(420)])])
def test_kills_neither_lose_nor_double_a_tick(seconds):
    env = with_schedule(second=entry(1.0, "second"))
    workers = [Worker(concurrency=1, wait=False, **env) for _ in range(3)]
    try:
        wait_for(lambda: made("second") >= 2, 40, "it begins")
        keep_killing(workers, seconds, **env)
        enough = made("second") + 2
        wait_for(lambda: made("second") >= enough, 40, "it goes on")
    finally:
        for worker in workers:
            worker.kill()
    assert Schedule.objects.get().missed == 0, "the machine was away for longer than a tick is in time"
    each_tick_once("second", seconds * 2 // 3, SECOND)


@pytest.mark.slow
@pytest.mark.database
@pytest.mark.parametrize("point", ["before_tick", "after_tick"])
def test_a_process_that_dies_while_it_decides_leaves_the_tick_to_others(point):
    env = with_schedule(second=entry(1.0, "second"))
    with Worker(concurrency=1, sync=f"{point}=kill", **env) as worker:
        wait_reached(worker.directory, point)
        wait_for(lambda: made("second") >= 3, 30, worker.text)
    each_tick_once("second", 3, SECOND)


@pytest.mark.timeout(120)
def test_a_process_that_stands_still_while_it_decides_holds_nobody_up():
    if connection.vendor != "postgresql":
        pytest.skip("whoever stands still in a transaction on SQLite has the file's lock")
    env = with_schedule(second=entry(1.0, "second"))
    with Worker(concurrency=1, **env) as other, Worker(concurrency=1, sync="after_tick=stop", **env) as still:
        pid = wait_reached(still.directory, "after_tick", 60)
        before = made("second")
        wait_for(lambda: made("second") >= before + 13, 40, other.text)
        subprocess.run(["kill", "-CONT", str(pid)], check=True)
        wait_for(lambda: made("second") >= before + 16, 30, still.text)
    each_tick_once("second", 16, SECOND)


@pytest.mark.slow
@pytest.mark.database
def test_a_worker_that_was_paused_makes_up_for_what_it_missed_once():
    env = with_schedule(second=entry(1.0, "second"))
    with Worker(concurrency=1, **env) as worker:
        wait_for(lambda: made("second") >= 2, 30, worker.text)
        worker.signal(signal.SIGSTOP)
        time.sleep(4)
        worker.signal(signal.SIGCONT)
        enough = made("second") + 6
        wait_for(lambda: made("second") >= enough, 30, worker.text)
    each_tick_once("second", 6, SECOND)


def test_clocks_that_differ_make_one_job_for_each_tick():
    if connection.vendor != "postgresql":
        pytest.skip("the clock of a database in a file is that of the process")
    env = with_schedule(second=entry(1.0, "second"))
    with Worker(concurrency=1, **env) as right, Worker(concurrency=1, **env | clock(1 / 60)) as wrong:
        wait_for(lambda: made("second") >= 8, 30, right.text)
        right.kill()
        enough = made("second") + 3
        wait_for(lambda: made("second") >= enough, 30, wrong.text)
    each_tick_once("second", 11, SECOND)


# Beside celery beat


@pytest.mark.slow
@pytest.mark.database
def test_celery_beat_beside_doubles_nothing(tmp_path):
    env = with_schedule(second=entry(1.0, "second"))
    command = [sys.executable, "-m", "celery", "-A", "shop", "beat", "-l", "INFO", "--max-interval", "1", "--pidfile="]
    command += [f"--schedule={tmp_path / 'beat'}"]
    with (tmp_path / "log").open("ab") as log, Worker(concurrency=1, **env):
        process = subprocess.Popen(die_with_parent(*command), stdout=log, stderr=log, env=environment(**env), cwd=ROOT)
        try:
            wait_for(lambda: "beat is not needed" in (tmp_path / "log").read_text(), 30, "beat calls")
            enough = made("second") + 5
            wait_for(lambda: made("second") >= enough, 30, (tmp_path / "log").read_text)
        finally:
            process.terminate()
            process.wait()
    each_tick_once("second", 5, SECOND)
    assert all(TICK in job.headers for job in Job.objects.all()), "beat made a job of its own"
    assert "celery beat runs beside" in noted()["beat"]


EMBEDDED = """
import os, sys, time
import django; django.setup()
from celery import current_app
from celery.beat import EmbeddedService
from django.db import connections
from jobs.models import Job
current_app.loader.import_default_modules()
connections.close_all()
beat = EmbeddedService(current_app, max_interval=1, schedule_filename=sys.argv[1])
beat.start()
until = time.monotonic() + 30
while time.monotonic() < until and Job.objects.count() < 2:
    time.sleep(0.2)
for each in os.listdir(f"/proc/{beat.pid}/fd"):
    position = open(f"/proc/{beat.pid}/fdinfo/{each}").read().split()[1]
    if "sqlite" in os.readlink(f"/proc/{beat.pid}/fd/{each}") and position != "0":
        print("written to", os.readlink(f"/proc/{beat.pid}/fd/{each}"))
beat.terminate()
"""


def test_the_beat_of_a_worker_writes_into_no_file_of_the_database(tmp_path):
    """As ``celery worker -B`` has it: it closes what it inherits, and a wake-up went to what it opened after that."""
    command = [sys.executable, "-c", EMBEDDED, str(tmp_path / "beat")]
    env = environment(**with_schedule(second=entry(1.0, "second")))
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert made("second"), done.stderr
    assert "written to" not in done.stdout, done.stdout
    assert "Traceback" not in done.stderr, done.stderr


def test_decide_is_done_once_for_each_tick_even_by_hand(beat):
    beat["e"] = entry(60)
    Schedules().run_once()
    move("e", 61 * SECOND)
    known = entries.gather(current_app)[0]["e"]
    assert decide(known) == (1, 0)
    assert decide(known) is None


def test_an_entry_of_the_schedule_that_cannot_run():
    wrong = checked.app(beat_schedule={"nightly": {"task": "shop.tasks.report", "schedule": "at night"}})
    [message] = [each for each in checks.check_celery(wrong) if each.id == "jobs.W023"]
    assert "'nightly': 'at night' must be seconds" in message.msg


def test_arguments_that_are_a_text_are_refused():
    """Of a missing comma: each letter would be an argument."""
    with pytest.raises(TypeError, match="must be a list or a tuple"):
        entries.Entry(current_app, "x", {"task": "t", "schedule": 60, "args": ("all")})
