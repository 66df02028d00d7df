"""``manage.py jobs doctor``: what is well, and what is wrong in plain words."""

from __future__ import annotations

import datetime
import io
import json

import pytest
from celery import shared_task
from django.core.management import CommandError, call_command
from django.db import InternalError, connection
from django.utils import timezone

from jobs.contrib.limits import limits
from jobs.contrib.operator import doctor, statistics
from jobs.contrib.pauses import pauses
from jobs.models import Instance, Job
from tests.helpers.harness import Worker
from tests.helpers.rows import ended, let_heartbeat, make, make_node
from tests.helpers.servers import free_port

pytestmark = pytest.mark.django_db(transaction=True)


def examine(*args: str) -> tuple[dict[str, dict], str]:
    """The findings by name, and the error that it ends with."""
    out = io.StringIO()
    try:
        call_command("jobs", "doctor", *args, "--json", stdout=out)
        error = ""
    except CommandError as exc:
        error = str(exc)
    return {each["what"]: each for each in json.loads(out.getvalue())["findings"]}, error


@pytest.mark.core
def test_all_is_well():
    with Worker():
        found, error = examine("--timeout", "20")
        out = io.StringIO()
        call_command("jobs", "doctor", stdout=out)
    assert error == ""
    heard = "notifications of 'default'"
    assert set(found) == {"database 'default'", "settings", "broker", "locks", heard, "workers", "probe"}
    assert all(each["is_well"] for each in found.values())
    assert [line.split()[0] for line in out.getvalue().splitlines()] == ["ok"] * 7
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded"}


def test_no_worker(monkeypatch):
    monkeypatch.setattr(doctor, "SOON", 0.3)
    found, error = examine()
    assert "2 of 7 things" in error
    assert found["workers"]["says"] == "none is alive"
    assert "No worker is alive" in found["probe"]["says"]
    assert "within 0.3" in found["probe"]["says"]
    assert Job.objects.get().state == "cancelled"


def test_a_paused_queue_and_no_probe():
    pauses.pause("mail")
    found, _ = examine("--queue", "mail")
    assert found["probe"]["cure"] == "manage.py jobs resume mail"
    assert not Job.objects.exists()
    found, _ = examine("--no-probe")
    assert "probe" not in found


@pytest.mark.slow
def test_a_broker_that_is_away(use_broker):
    use_broker(f"redis://127.0.0.1:{free_port()}/0")
    found, _ = examine("--no-probe")
    assert not found["broker"]["is_well"]
    assert "cannot be reached" in found["broker"]["says"]
    assert "Jobs run without it" in found["broker"]["says"]


def test_notifications_that_are_not_heard(monkeypatch):
    monkeypatch.setattr(doctor, "_hears", lambda alias: False)
    said = examine("--no-probe")[0]["notifications of 'default'"]
    # A job is found nevertheless.
    assert said["is_well"]
    if connection.vendor == "postgresql":
        assert "are not heard" in said["says"]
        assert "until a worker looks" in said["says"]


def test_a_copied_database():
    Instance.objects.update_or_create(pk=1, defaults={"mark": "another"})
    found, error = examine()
    assert list(found) == ["database 'default'"]
    assert "jobs adopt" in found["database 'default'"]["cure"]
    assert "1 of 1" in error


def test_a_database_that_takes_no_writes():
    def refuse(execute, sql, *rest):
        if sql.startswith("INSERT"):
            raise InternalError("cannot execute INSERT in a read-only transaction")
        return execute(sql, *rest)

    let_heartbeat(make_node())
    with connection.execute_wrapper(refuse):
        found, error = examine()
    assert "no job can be enqueued: cannot execute INSERT" in found["probe"]["says"]
    assert "takes writes" in found["probe"]["cure"]
    assert error


def test_a_queue_that_nobody_works_on():
    let_heartbeat(make_node())
    make("ready", queue="nobody", age=600)
    found, error = examine("--no-probe")
    assert "nobody: the oldest ready job has waited" in found["attention"]["says"]
    assert not found["attention"]["is_well"]
    assert error
    with pytest.raises(CommandError, match="--timeout has to be above 0"):
        call_command("jobs", "doctor", "--timeout", "0")


def test_what_is_worth_a_look_and_no_fault_is_a_note(monkeypatch):
    pauses.pause("mail", "ada")
    let_heartbeat(make_node())
    make("ready", queue="nobody", age=600)
    monkeypatch.setattr(doctor, "_hears", lambda alias: False)
    out = io.StringIO()
    with pytest.raises(CommandError):
        call_command("jobs", "doctor", "--no-probe", stdout=out, no_color=True)
    lines = out.getvalue().splitlines()
    assert any(line.startswith("note  the queue mail is paused by ada") for line in lines), lines
    assert any(line.startswith("WRONG nobody: the oldest ready job has waited") for line in lines)
    assert any(line.startswith("ok    settings: ") for line in lines)
    if connection.vendor == "postgresql":
        assert any(line.startswith("note  notifications of 'default': are not heard") for line in lines)


def test_tasks_whose_jobs_could_share_a_commit_are_named(monkeypatch):
    def nothing():
        pass

    monkeypatch.setattr(doctor, "OFTEN", 3)
    at = timezone.now() - datetime.timedelta(minutes=5)
    tasks = {"quick": 0.002, "slow": 3.0, "seldom": 0.002, "fails": 0.002}
    for name, seconds in tasks.items():
        shared_task(nothing, name=f"tests.doctor.{name}")
        for _ in range(2 if name == "seldom" else 4):
            ended(at, ran=seconds, task=f"tests.doctor.{name}")
    shared_task(nothing, name="tests.doctor.grouped", grouped=True)
    for _ in range(4):
        ended(at, ran=0.002, task="tests.doctor.grouped")
    ended(at, ran=0.002, state="failed", task="tests.doctor.fails")
    statistics.Count().run_once()
    found, _ = examine("--no-probe")
    says = found["commits"]["says"]
    assert "tests.doctor.quick (4 in an hour" in says
    assert not any(f"tests.doctor.{name}" in says for name in ("slow", "seldom", "fails", "grouped"))
    assert "grouped=True" in found["commits"]["cure"]


def test_tasks_whose_jobs_run_alone_whatever_they_declare_are_not_named(monkeypatch, declare):
    monkeypatch.setattr(doctor, "OFTEN", 3)
    at = timezone.now() - datetime.timedelta(minutes=5)
    declared = {
        "plain": {},
        "concurrency": {"concurrency": 5},
        "rate": {"rate": "1000/s"},
        "of_celery": {"rate_limit": "1000/s"},
        "by_key": {"concurrency": 5, "limit_key": "{user_id}"},
        "expires": {"expires": 60},
        "lock": {"lock": "{user_id}"},
        "outside": {"atomic": False},
        "by_hand": {},
    }
    limits.set_by_hand("tests.alone.by_hand", 5, None)
    names = [declare(name=f"tests.alone.{name}", **more).name for name, more in declared.items()]
    for name in (*names, "jobs.probe", "tests.alone.gone"):
        for _ in range(4):
            ended(at, ran=0.002, task=name)
    statistics.Count().run_once()
    says = examine("--no-probe")[0]["commits"]["says"]
    assert says.endswith("Several could share one: tests.alone.plain (4 in an hour, 95 % within 2 ms)"), says
