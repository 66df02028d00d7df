"""``manage.py jobs``: what it says is true, what it does goes through the state machine, and its loops survive."""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from io import StringIO

import pytest
from celery import Celery, current_app
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import conf as project
from jobs.conf import conf
from jobs.inspection import counts
from jobs.lifecycle import transitions
from jobs.maintenance.rescue import Rescue
from jobs.management.commands.jobs import Command
from jobs.models import Cancellation, Instance, Job, Marker
from jobs.store import heartbeats, identity
from jobs.store.databases import SideDatabase
from tests.helpers.harness import ROOT, claim, environment
from tests.helpers.plans import analyze, asked_by, numbers, plan
from tests.helpers.rows import ERROR, let_heartbeat, make, make_node
from tests.helpers.servers import die_with_parent, wait_for
from tests.helpers.terminal import OBEYED

pytestmark = pytest.mark.django_db(transaction=True)


def run(*args: str) -> str:
    out = StringIO()
    call_command("jobs", *args, stdout=out, no_color=True)
    return out.getvalue()


def refused(*args: str) -> tuple[str, str]:
    out = StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("jobs", *args, stdout=out, no_color=True)
    return out.getvalue(), str(caught.value)


# Status


def test_status_as_json_counts_by_state_and_queue():
    node = make_node()
    make_node(dead_at=timezone.now())
    make("scheduled", age=-60)
    make("scheduled", age=7)
    make("ready", age=30)
    make("ready", age=12, queue="mail")
    make("running", node=node)
    make("succeeded")
    make("failed")
    make("failed")
    found = json.loads(run("status", "--json"))
    assert list(found) == [
        "databases", "jobs", "capped", "queues", "pauses", "nodes", "dead_nodes", "died", "oldest_ready_seconds", "due",
        "unknown_tasks", "limits", "schedules", "remarks",
    ]  # fmt: skip
    assert found["jobs"] == {"scheduled": 2, "ready": 2, "running": 1, "succeeded": 1, "failed": 2, "cancelled": 0}
    ages = [queue.pop("oldest_ready_seconds") for queue in found["queues"].values()]
    assert 30 <= ages[0] < 50
    assert 12 <= ages[1] < 30
    no_more = {"capped": False, "workers": 0, "paused": False, "held": 0, "parked": 0}
    assert found["queues"] == {
        "celery": {"scheduled": 2, "ready": 1, "running": 1, **no_more},
        "mail": {"scheduled": 0, "ready": 1, "running": 0, **no_more},
    }
    [alive] = found["nodes"]
    assert (alive["id"], alive["hostname"], alive["pid"]) == (str(node.pk), "web1", 4711)
    assert (alive["queues"], alive["running"]) == (["celery", "mail"], 1)
    assert 0 <= alive["age_seconds"] < 20
    assert found["dead_nodes"] == 1
    assert 30 <= found["oldest_ready_seconds"] < 50
    assert found["due"]["count"] == 1
    assert 7 <= found["due"]["lag_seconds"] < 30


def test_status_says_when_workers_refuse_the_database():
    make("ready")
    assert json.loads(run("status", "--json"))["databases"]["default"]["adopted"], "the first worker will mark it"
    identity.check_all()
    assert "marked as another" not in run("status")
    Instance.objects.update(mark="production")
    found = json.loads(run("status", "--json"))["databases"]["default"]
    assert found == {"marked_as": "production", "is": identity.mark_of("default"), "adopted": False}
    assert (
        f"the database 'default' is marked as another one, 'production', and it is {found['is']!r}: workers refuse it "
        "until `manage.py jobs adopt`"
    ) in run("status").splitlines()


def test_status_says_when_a_queue_stands_still():
    """That a worker is connected does not say that it consumes."""
    make("ready", queue="slow", age=300)
    make("ready", queue="mail", age=0)
    assert "no worker is alive, and the oldest ready job has waited 5.0 min" in run("status")
    let_heartbeat(make_node(queues=["other"]))
    assert "slow: the oldest ready job has waited 5.0 min, and no worker consumes its queue" in run("status")
    nodes = [make_node(queues=["slow", "mail"]) for _ in range(2)]
    for node in nodes:
        let_heartbeat(node)
    text = run("status")
    assert "slow: the oldest ready job has waited 5.0 min although 2 workers consume its queue, and none of" in text
    assert "mail: " not in text
    make("running", queue="slow", node=nodes[0])
    assert "slow: the oldest ready job has waited 5.0 min; 2 workers consume its queue (1 running)" in run("status")
    assert json.loads(run("status", "--json"))["queues"]["slow"]["workers"] == 2


@pytest.mark.django_db(transaction=True)
def test_status_tells_workers_that_beat_from_those_that_fell_silent():
    """Nobody is left to declare them dead when all of them died."""
    beating, silent = make_node(), make_node()
    make_node(dead_at=timezone.now())
    make_node(dead_at=timezone.now(), signed_off=True)
    make_node(dead_at=timezone.now() - datetime.timedelta(days=2))
    let_heartbeat(beating)
    let_heartbeat(silent, 60.0)
    found = json.loads(run("status", "--json"))
    seen = {node["id"]: node for node in found["nodes"]}
    assert (seen[str(beating.pk)]["alive"], seen[str(silent.pk)]["alive"]) == (True, False)
    assert 60 <= seen[str(silent.pk)]["beat_seconds"] < 80
    assert found["dead_nodes"] == 1, "one signed off, and one is of last week"
    assert "workers: 1 alive, 1 silent, 1 died" in run("status")


def test_status_says_what_is_overdue_and_what_no_worker_knows():
    make("scheduled", age=2)
    for _ in range(2):
        make("scheduled", age=-60, task="shop.mail", error={**ERROR, "type": "NotRegistered"})
    text = run("status")
    assert "shop.mail: 2 jobs wait for a worker that knows this task" in text
    assert "no worker has made" not in text, "it may take a moment"
    make("scheduled", age=300)
    assert "2 jobs are due, the oldest for 5.0 min, and no worker has made them ready" in run("status")
    assert json.loads(run("status", "--json"))["unknown_tasks"] == {"shop.mail": 2}


def test_status_counts_no_long_backlog_to_its_end(monkeypatch):
    monkeypatch.setattr(counts, "MOST", 3)
    for number in range(7):
        make("ready", queue="mail", age=number)
    make("ready", queue="few")
    text = run("status")
    assert re.search(r"^mail +0 +3\+ +0$", text, re.M)
    assert re.search(r"^few +0 +1 +0$", text, re.M)
    assert re.search(r"^total +0 +4\+ +0$", text, re.M)
    found = json.loads(run("status", "--json"))
    assert (found["queues"]["mail"]["ready"], found["queues"]["mail"]["capped"], found["capped"]) == (3, True, True)
    assert 6 <= found["queues"]["mail"]["oldest_ready_seconds"] < 20, "it is the first of its index"


def test_the_oldest_ready_job_is_found_behind_those_of_a_better_priority():
    make("ready", age=5, rank=-9)
    make("ready", age=50, rank=9)
    make("ready", age=20, rank=0)
    found = json.loads(run("status", "--json"))["queues"]["celery"]
    assert found["ready"] == 3
    assert 50 <= found["oldest_ready_seconds"] < 70


def test_status_of_an_empty_database_has_the_same_keys():
    found = json.loads(run("status", "--json"))
    assert set(found["jobs"].values()) == {0}
    assert (found["queues"], found["nodes"], found["oldest_ready_seconds"]) == ({}, [], None)
    assert (found["due"], found["unknown_tasks"]) == ({"count": 0, "lag_seconds": 0.0}, {})
    assert "workers: 0 alive, 0 silent, 0 died in the last day" in run("status")


def test_live_status_reads_no_history():
    make("succeeded")
    make("ready")
    with CaptureQueriesContext(connection) as queries:
        found = json.loads(run("status", "--live", "--json"))
    assert found["jobs"] == {
        "scheduled": 0, "ready": 1, "running": 0, "succeeded": None, "failed": None, "cancelled": None
    }  # fmt: skip
    assert not [q["sql"] for q in queries if "succeeded" in q["sql"]]


def test_no_page_reads_the_backlog():
    """50,000 ready and 50,000 scheduled jobs: each statement takes an index, and stops early."""
    made = int(time.time() * 1000)
    if connection.vendor == "postgresql":
        new_id = f"(lpad(to_hex({made} + i), 12, '0') || '70008' || lpad(to_hex(i), 15, '0'))::uuid"
        now = "now()"
    elif connection.vendor == "mysql":
        new_id = f"CONCAT(LPAD(LOWER(HEX({made} + i)), 12, '0'), '70008', LPAD(LOWER(HEX(i)), 15, '0'))"
        now = "NOW(6)"
    else:
        new_id, now = f"printf('%%012x70008%%015x', {made} + i, i)", "CURRENT_TIMESTAMP"
    with connection.cursor() as cursor:
        for state in ("ready", "scheduled"):
            cursor.execute(
                "INSERT INTO jobs_job "
                f"(id, task, queue, state, run_at, args, kwargs, rank, lease, retries, crashes, node_losses, snoozes) "
                f"SELECT {new_id.replace('70008', '70008' if state == 'ready' else '70009')}, 't', 'celery', "
                f"'{state}', {now}, '[]', '{{}}', 0, 0, 0, 0, 0, 0 FROM {numbers(50_000)}",
                [],
            )
    analyze("jobs_job")
    run("status", "--live")
    # To count up to a number in an order, MariaDB sorts the queue by its index; only people ask for that.
    for sql, params in asked_by(lambda: [run("status", "--live"), run("pause", "celery")], few=80_000):
        if "jobs_job" not in sql or connection.vendor == "mysql":
            continue
        text = plan(sql, params)
        assert "Seq Scan on jobs_job" not in text, f"{sql}\n{text}"
        assert not re.search(r"SCAN (jobs_job|following|ready|job)\b(?! USING)", text), f"{sql}\n{text}"


def test_status_as_text_is_a_table_in_line():
    make("running", node=make_node())
    make("ready", queue="mail", age=200)
    text = run("status")
    assert re.search(r"^queue +scheduled +ready +running$", text, re.M)
    assert re.search(r"^mail +0 +1 +0$", text, re.M)
    assert re.search(r"^total +0 +1 +1$", text, re.M)
    assert re.search(r"web1 +4711 +\? +\? +\d\.\d s +never \(silent\) +1 +celery, mail$", text, re.M)
    assert "the oldest ready job has waited 3.3 min" in text
    lines = text.splitlines()
    assert len({len(line) for line in lines[:3]}) == 1


# Retry and cancel


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_retry_makes_an_ended_job_ready(state):
    job = make(state, retries=3)
    assert run("retry", str(job.pk)) == f"{job.pk} retried (was {state})\n"
    job.refresh_from_db()
    assert (job.state, job.retries, job.finished_at) == ("ready", 0, None)


@pytest.mark.parametrize("state", ["scheduled", "ready"])
def test_cancel_ends_a_waiting_job(state):
    job = make(state)
    assert run("cancel", str(job.pk)) == f"{job.pk} cancelled (was {state})\n"
    job.refresh_from_db()
    assert (job.state, job.error["type"]) == ("cancelled", "Cancelled")


@pytest.mark.parametrize(
    ("verb", "state", "answer"),
    [
        ("retry", "succeeded", "is succeeded: nothing to retry"),
        ("retry", "running", "is running: nothing to retry"),
        ("retry", "ready", "is ready: nothing to retry"),
        ("cancel", "succeeded", "is succeeded: nothing to cancel"),
        ("cancel", "failed", "is failed: nothing to cancel"),
    ],
)
def test_what_cannot_be_done_says_why_and_changes_nothing(verb, state, answer):
    job = make(state)
    before = Job.objects.filter(pk=job.pk).values().get()
    out, error = refused(verb, str(job.pk))
    assert out == f"{job.pk} {answer}\n"
    assert error.startswith("1 of 1 could not be")
    assert Job.objects.filter(pk=job.pk).values().get() == before


def test_each_id_gets_its_own_answer_and_one_bad_one_stops_no_other():
    job, unknown = make("failed"), uuid.uuid4()
    out, error = refused("retry", "no-uuid", str(unknown), str(job.pk), str(job.pk))
    assert out.splitlines() == [
        "no-uuid is no valid UUID, nor the last 8 digits of one",
        f"{unknown} is unknown",
        f"{job.pk} retried (was failed)",
    ]
    assert error == "2 of 3 could not be retried."


@pytest.mark.parametrize(
    ("verb", "state", "answer"),
    [
        ("retry", "failed", "would be retried (is failed)"),
        ("cancel", "ready", "would be cancelled (is ready)"),
        ("cancel", "running", "would be asked to end (is running)"),
    ],
)
def test_dry_run_changes_nothing(verb, state, answer):
    job = make(state)
    assert run(verb, "--dry-run", str(job.pk)) == f"{job.pk} {answer}\n"
    job.refresh_from_db()
    assert job.state == state
    assert not Cancellation.objects.exists()


def test_a_job_that_was_claimed_in_between_is_asked_to_end(monkeypatch):
    job, node = make("ready"), make_node()
    cancel = transitions.cancel

    def late(key, alias, why):
        assert claim(key, node.pk)
        return cancel(key, alias, why=why)

    monkeypatch.setattr(transitions, "cancel", late)
    assert "asked to end at its next checkpoint or at its end" in run("cancel", str(job.pk))
    assert Cancellation.objects.filter(pk=job.pk).exists()


def manage(*args: str) -> subprocess.CompletedProcess:
    command_line = [sys.executable, "manage.py", "jobs", *args]
    return subprocess.run(command_line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)


def test_exit_status_is_1_if_a_job_could_not_be_retried():
    good, bad = make("failed"), make("succeeded")
    done = manage("retry", str(good.pk), "--no-color")
    assert (done.returncode, done.stdout) == (0, f"{good.pk} retried (was failed)\n")
    done = manage("retry", str(bad.pk), "--settings", "tests.settings")
    assert done.returncode == 1
    assert "nothing to retry" in done.stdout
    assert "Traceback" not in done.stderr


def test_exit_status_is_2_if_the_settings_are_unusable():
    """And not 1, with which verify says that the promise is broken."""
    command_line = [sys.executable, "manage.py", "jobs", "verify"]
    env = environment(JOBS_TEST_SETTINGS=json.dumps({"RELAI": 1}))
    done = subprocess.run(command_line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "jobs.E001" in done.stderr


# Maintenance


def test_rescue_wants_the_project_app(monkeypatch):
    class Proxy:
        def _get_current_object(self):
            return Celery("default", set_as_current=False)

    monkeypatch.setattr(project, "current_app", Proxy())
    _, error = refused("rescue", "--once")
    assert "import it in the __init__.py" in error


def test_loop_is_quiet_survives_errors_and_ends_at_a_signal(monkeypatch, caplog):
    ticks = [OperationalError("gone"), ValueError("odd"), {"nodes": 0, "jobs": 0}, {"nodes": 1, "jobs": 2}]

    def run_once(self):
        tick = ticks.pop(0)
        if not ticks:
            os.kill(os.getpid(), signal.SIGTERM)
        if isinstance(tick, Exception):
            raise tick
        return tick

    monkeypatch.setattr(Rescue, "run_once", run_once)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    out = run("rescue")
    assert out.splitlines() == [
        f"rescue: one look every {conf().HEARTBEAT:g} s until a signal comes",
        "rescue: nodes 1, jobs 2",
    ]
    assert [(r.levelname, r.action) for r in caplog.records if hasattr(r, "action")] == [
        ("ERROR", "database_away"),
        ("ERROR", "rescue_error"),
    ]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_loop_process_works_and_stops_without_waiting_for_its_next_turn(number, settings):
    settings.JOBS = {**settings.JOBS, "PRUNE_INTERVAL": 60}
    make("succeeded", age=8 * 86400)
    process = subprocess.Popen(
        die_with_parent(sys.executable, "manage.py", "jobs", "prune", "--json"),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: not Job.objects.exists(), 30, "pruned")
        process.send_signal(number)
        out, _ = process.communicate(timeout=10)
        assert process.returncode == 0
        assert json.loads(out)["jobs"] == 1
    finally:
        process.kill()


@pytest.mark.slow
def test_rescue_once_watches_and_gives_back_the_jobs_of_the_dead_only():
    alive, dead = make_node(), make_node(hostname="gone")
    kept, lost = make("running", node=alive), make("running", node=dead)
    side, stop = SideDatabase(), threading.Event()
    heartbeats.first(side, alive.pk)
    heartbeats.first(side, dead.pk)

    def beat_on() -> None:
        while not stop.wait(0.2):
            heartbeats.send(side, alive.pk)

    thread = threading.Thread(target=beat_on)
    thread.start()
    try:
        out = run("rescue", "--once")
    finally:
        stop.set()
        thread.join()
        side.close()
    first, last = out.splitlines()
    heartbeat, watch = conf().HEARTBEAT, conf().DEAD_AFTER + 2 * conf().HEARTBEAT
    assert first == f"rescue: one look every {heartbeat:g} s for {watch:g} s: only then is a silent worker dead"
    assert last.startswith("rescue: nodes 1")
    lost.refresh_from_db()
    kept.refresh_from_db()
    assert (lost.state, lost.node_losses, kept.state) == ("ready", 1, "running")


def test_prune_deletes_what_ended_long_ago():
    old, fresh = make("succeeded", age=8 * 86400), make("succeeded")
    Marker.objects.create(key="kept", kind="once", expires_at=transitions.now_plus(60))
    Marker.objects.create(key="expired", kind="once", expires_at=transitions.now_plus(-60))
    assert json.loads(run("prune", "--dry-run", "--json")) == {"jobs": 1, "markers": 1}
    assert run("prune", "--dry-run") == "prune: would delete jobs 1, markers 1\n"
    assert (Job.objects.count(), Marker.objects.count()) == (2, 2)
    assert run("prune", "--once") == "prune: jobs 1, markers 1\n"
    assert list(Job.objects.all()) == [fresh]
    assert Marker.objects.get().key == "kept"
    assert old.pk != fresh.pk


# Help


@pytest.mark.parametrize("name", Command.subcommands)
def test_each_subcommand_has_help_with_examples(name, capsys):
    with pytest.raises(SystemExit) as caught:
        call_command("jobs", name, "--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "examples:\n" in text
    assert f"  manage.py jobs {name}" in text


def test_without_a_subcommand_it_says_which_there_are():
    with pytest.raises(CommandError, match="subcommand"):
        call_command("jobs")


# What people type


@pytest.mark.parametrize("verb", ["why", "show", "retry", "cancel"])
def test_a_job_is_named_by_the_digits_that_lists_show(verb):
    job = make("ready" if verb == "cancel" else "failed")
    out = run(verb, str(job.pk)[-8:].upper())
    assert str(job.pk) in out or "cancelled" in out or "retried" in out
    if verb in ("retry", "cancel"):
        job.refresh_from_db()
        assert job.state == ("cancelled" if verb == "cancel" else "ready")


def test_digits_of_several_ids_list_them_and_change_nothing():
    one, other = (make("failed", pk=uuid.UUID(f"0190000{n}-0000-7000-8000-0000abcdef12")) for n in range(2))
    _out, error = refused("show", "abcdef12")
    assert str(one.pk) in error
    assert f"{other.pk} ({other.task})" in error
    out, _error = refused("retry", "abcdef12")
    assert out.startswith(f"abcdef12 is the end of several ids: {one.pk}")
    assert not Job.objects.exclude(state="failed").exists()


def test_digits_of_no_id_say_so():
    assert refused("why", "deadbeef")[1] == "'deadbeef' is the end of no job's id"


def test_a_task_is_named_by_the_end_of_its_name():
    make("failed", task="shop.tasks.send_welcome_email")
    make("failed", task="shop.tasks.charge_order")
    assert run("retry", "--task", "send_welcome_email") == "1 retried, 0 refused\n"
    assert "1 retried" in run("retry", "--task", "tasks.charge_order")


def test_a_task_whose_code_is_gone_is_known_by_its_jobs():
    make("failed", task="shop.gone")
    assert run("retry", "--task", "shop.gone") == "1 retried, 0 refused\n"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("send_welcom_email", "did you mean shop.tasks.send_welcome_email?"),
        ("shop.tasks.charge_ordr", "did you mean shop.tasks.charge_order?"),
        ("xyzzy", "--task: there is no task, and no job, of the name 'xyzzy'"),
    ],
)
def test_an_unknown_task_gets_the_nearest(name, says):
    assert says in refused("list", "--task", name)[1]


def test_a_name_of_several_tasks_lists_them():
    made = [current_app.task(name=f"{package}.tasks.same", shared=False, lazy=False)(run) for package in ("a", "b")]
    try:
        assert "several tasks are called 'same': a.tasks.same, b.tasks.same" in refused("cancel", "--task", "same")[1]
    finally:
        for task in made:
            current_app.tasks.pop(task.name)


def test_what_fails_steers_none_either():
    _, why = refused("tell", "stop", f"web{OBEYED}")
    assert "web\\x1b[2J" in why
    assert not set(why) & set("\x1b\x07\r\n\u202e\x9b"), why
