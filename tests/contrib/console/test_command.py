"""``manage.py jobs``: what it says is true, what it does goes through the state machine, and its loops survive."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from contextlib import nullcontext

import pytest
from celery import Celery, current_app
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db import InterfaceError, InternalError, OperationalError
from django.utils import timezone

from jobs import conf as project
from jobs.conf import conf
from jobs.contrib.checks import system as checks
from jobs.contrib.console.base import WISHES
from jobs.lifecycle import transitions
from jobs.lifecycle.transitions import NEVER
from jobs.maintenance.rescue import Rescue
from jobs.management.commands.jobs import Command
from jobs.models import Cancellation, Job, Marker
from jobs.models.values import as_uuid
from jobs.store import heartbeats
from jobs.store.databases import SideDatabase
from tests import tasks
from tests.helpers.commands import refused, run
from tests.helpers.harness import ROOT, claim, environment
from tests.helpers.rows import make, make_node
from tests.helpers.servers import die_with_parent, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


# Status


# Retry and cancel


@pytest.mark.parametrize(("command", "is_all"), [("list", False), ("prune", True)])
def test_a_command_that_looks_imports_no_tasks_for_its_checks(command, is_all, monkeypatch, settings):
    imported = []
    monkeypatch.setattr(checks, "import_tasks", imported.append)
    call_command("jobs", command, *(["--dry-run"] if is_all else []), skip_checks=False)
    assert bool(imported) == is_all
    settings.JOBS = {**settings.JOBS, "HEARTBEAT": -1}
    with pytest.raises(SystemCheckError, match="HEARTBEAT"):
        call_command("jobs", command, skip_checks=False)


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_retry_makes_an_ended_job_ready(state):
    job = make(state, retries=3)
    assert run("retry", str(job.pk)) == f"{job.pk} retried (was {state})\n"
    job.refresh_from_db()
    assert (job.state, job.retries, job.finished_at) == ("ready", 0, None)


def test_of_two_options_none_is_dropped():
    for state in ("scheduled", "ready", "failed"):
        make(state)
    assert "2 would be cancelled" in run("cancel", "--state", "ready", "--state", "scheduled", "--dry-run")
    with pytest.raises(CommandError, match="--queue can be given once"):
        run("cancel", "--queue", "a", "--queue", "b")


def test_a_text_that_is_none_is_said_to_be_so():
    with pytest.raises(CommandError, match="No database can look for that"):
        run("list", "--task", "\udcff")


def test_those_that_are_asked_to_end_are_counted_apart():
    make("ready"), make("running")
    which = "cancel", "--state", "ready", "--state", "running"
    counted = {"dry_run": True, "done": 2, "asked_to_end": 1, "refused": []}
    assert json.loads(run(*which, "--dry-run", "--json")) == counted
    assert run(*which).splitlines() == [
        "2 cancelled, 0 refused",
        "of these 1: asked to end at its next checkpoint or at its end (is running)",
    ]


def test_an_id_from_beyond_all_calendars_is_shown():
    tasks.noop.apply_async(task_id="ffffffff-ffff-7fff-bfff-ffffffffffff")
    assert "tests.tasks.noop" in run("list")
    assert "tests.tasks.noop" in run("show", "ffffffff-ffff-7fff-bfff-ffffffffffff")


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


@pytest.mark.parametrize(("verb", "state"), [("retry", "failed"), ("cancel", "ready")])
def test_a_dry_run_of_many_costs_no_statement_for_each(verb, state, django_assert_max_num_queries):
    for _ in range(50):
        make(state)
    with django_assert_max_num_queries(8):
        assert run(verb, "--dry-run", "--state", state).startswith("50 would be ")
    assert Job.objects.filter(state=state).count() == 50


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
    done = manage("retry", str(bad.pk), "--settings", os.environ["DJANGO_SETTINGS_MODULE"])
    assert done.returncode == 1
    assert "nothing to retry" in done.stdout
    assert "Traceback" not in done.stderr


def test_exit_status_is_2_if_the_settings_are_unusable():
    """And not 1, which is the answer of a subcommand."""
    command_line = [sys.executable, "manage.py", "jobs", "list"]
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


def test_prune_that_finds_nothing_would_delete_nothing():
    assert run("prune", "--dry-run") == "prune: would delete nothing\n"


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


@pytest.mark.database
def test_a_command_in_a_process_that_goes_on_leaves_no_connection():
    """A scheduler of the project may call it each hour."""
    run("prune", "--once")
    gc.collect()
    gc.disable()
    try:
        before = os.listdir("/proc/self/fd")
        run("prune", "--once")
        assert os.listdir("/proc/self/fd") == before
    finally:
        gc.enable()


# Help


@pytest.mark.parametrize("name", Command.subcommands)
def test_each_subcommand_has_help_with_examples(name, capsys):
    with pytest.raises(SystemExit) as caught:
        call_command("jobs", name, "--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "examples:\n" in text
    assert f"  manage.py jobs {name}" in text


def test_help_is_by_what_one_wants(capsys):
    with pytest.raises(SystemExit):
        call_command("jobs", "--help")
    text = capsys.readouterr().out
    # Only extensions have commands of some kinds.
    places = [text.find(f"{wish}:\n") for wish in WISHES]
    assert [place for place in places if place >= 0] == sorted(place for place in places if place >= 0)
    for name, before, after in (("show", 0, 1), ("retry", 1, 2), ("prune", 4, -1)):
        assert f"\n  {name} " in text[places[before] : places[after] if after > 0 else None]
    assert sum(text.count(f"\n  {name} ") for name in Command.subcommands) == len(Command.subcommands)


def test_a_reader_that_has_enough_is_no_error():
    """Such as head: it closes the pipe."""
    source, end = os.pipe()
    os.close(source)
    command_line = [sys.executable, "manage.py", "jobs", "list"]
    done = subprocess.run(command_line, cwd=ROOT, env=environment(), stdout=end, stderr=subprocess.PIPE, timeout=60)
    os.close(end)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_closed_output_is_no_error():
    command_line = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "manage.py", "jobs", "list"]
    done = subprocess.run(command_line, cwd=ROOT, env=environment(), capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_output_without_room_is_said(options):
    with open("/dev/full", "w") as full:
        command_line = [sys.executable, "manage.py", "jobs", "list", *options]
        done = subprocess.run(
            command_line, cwd=ROOT, env=environment(), stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert (done.returncode, done.stderr) == (
        2,
        b"CommandError: The output cannot be written: No space left on device\n",
    )


def test_closed_errors_stop_no_command_that_warns():
    command_line = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "manage.py", "jobs", "pause", "unheard-of"]
    done = subprocess.run(command_line, cwd=ROOT, env=environment(), capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"unheard-of: paused, 0 jobs are ready\n")


def test_without_a_subcommand_it_says_which_there_are():
    with pytest.raises(CommandError, match="subcommand"):
        call_command("jobs")


# What people type


@pytest.mark.parametrize("verb", ["show", "retry", "cancel"])
def test_a_job_is_named_by_the_digits_that_lists_show(verb):
    job = make("ready" if verb == "cancel" else "failed")
    out = run(verb, str(job.pk)[-8:].upper())
    assert str(job.pk) in out or "cancelled" in out or "retried" in out
    if verb in ("retry", "cancel"):
        job.refresh_from_db()
        assert job.state == ("cancelled" if verb == "cancel" else "ready")


@pytest.mark.parametrize("spelling", ["order-17", "deadbeef"])
def test_a_job_is_named_by_the_id_that_another_program_gave_it(spelling):
    job = make(pk=as_uuid(spelling), made_at=timezone.now())
    assert str(job.pk) in run("show", spelling)


def test_digits_of_several_ids_list_them_and_change_nothing():
    one, other = (make("failed", pk=uuid.UUID(f"0190000{n}-0000-7000-8000-0000abcdef12")) for n in range(2))
    _out, error = refused("show", "abcdef12")
    assert str(one.pk) in error
    assert f"{other.pk} ({other.task})" in error
    out, _error = refused("retry", "abcdef12")
    assert out.startswith(f"abcdef12 is the end of several ids: {one.pk}")
    assert not Job.objects.exclude(state="failed").exists()


def test_digits_of_no_id_say_so():
    assert refused("show", "deadbeef")[1] == "'deadbeef' is the end of no job's id"


def test_a_task_is_named_by_the_end_of_its_name():
    name = "of.its.own.only_here"
    current_app.task(name=name, shared=False, lazy=False)(run)
    try:
        for end in ("only_here", "own.only_here"):
            make("failed", task=name)
            assert run("retry", "--task", end) == "1 retried, 0 refused\n"
    finally:
        current_app.tasks.pop(name)


def test_a_task_whose_code_is_gone_is_known_by_its_jobs():
    make("failed", task="shop.gone")
    assert run("retry", "--task", "shop.gone") == "1 retried, 0 refused\n"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("marckd", "did you mean tests.tasks.marked?"),
        ("tests.tasks.markd", "did you mean tests.tasks.marked?"),
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


def test_a_job_that_is_named_twice_is_one(capsys):
    job = make("failed")
    call_command("jobs", "retry", str(job.pk), str(job.pk).upper(), job.pk.hex, "--dry-run", "--json")
    assert json.loads(capsys.readouterr().out)["done"] == 1


def test_json_is_ascii(capsys):
    make("ready", queue="漢")
    call_command("jobs", "list", "--json")
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out)[0]["queue"] == "漢"


@pytest.mark.parametrize("command", [("list",), ("show", "ID")], ids=" ".join)
def test_a_terminal_that_cannot_show_a_name_ends_no_command(command):
    job = make("failed", queue="漢", error={"type": "E", "message": "日本"})
    line = [sys.executable, "manage.py", "jobs", *[str(job.pk) if word == "ID" else word for word in command]]
    env = {**environment(), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u6f22" in done.stdout


@pytest.mark.parametrize(
    ("command", "says"),
    [(("list", "--queue", "\udcff"), "No database"), (("list", "--limit", "9" * 20), None)],
    ids=["bytes", "number"],
)
def test_what_no_database_takes_is_no_traceback(command, says):
    with pytest.raises(CommandError, match=says) if says else nullcontext():
        call_command("jobs", *command)


@pytest.mark.parametrize("kind", [InterfaceError, InternalError])
def test_a_database_that_refuses_is_no_traceback(monkeypatch, kind):
    """Such as one that takes no writes: PostgreSQL's error is Django's ``InternalError``."""

    def refused(out, args):
        raise kind("read-only")

    monkeypatch.setitem(Command.subcommands, "list", Command.subcommands["list"]._replace(run=refused))
    with pytest.raises(CommandError, match="The database says: read-only"):
        call_command("jobs", "list")


def test_an_interrupted_command_says_so_and_no_more(monkeypatch, capsys):
    def interrupted(out, args):
        raise KeyboardInterrupt

    monkeypatch.setitem(Command.subcommands, "list", Command.subcommands["list"]._replace(run=interrupted))
    with pytest.raises(SystemExit) as ends:
        call_command("jobs", "list")
    assert (ends.value.code, capsys.readouterr().err) == (130, "interrupted\n")


def test_a_dry_run_promises_nothing_of_a_job_that_waits_for_something_else():
    job = make("scheduled", run_at=NEVER, waits_for="signal:x")
    for more in (["--dry-run"], []):
        with pytest.raises(CommandError):
            call_command("jobs", "run", str(job.pk), *more)
