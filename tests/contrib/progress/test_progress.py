"""How far a body is: said in memory, written by the supervisor, seen by people. And where the next run goes on."""

from __future__ import annotations

import datetime
import json
import os
import signal
import uuid

import pytest
from celery import shared_task
from celery.contrib.abortable import ABORTED, AbortableAsyncResult
from celery.result import AsyncResult
from django.core.management import call_command
from django.db import DataError, connection, connections, transaction
from django.template import Context, Template
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs.contrib.progress import public
from jobs.contrib.progress import said as progress
from jobs.contrib.results import store as results
from jobs.contrib.results.keeping import Keeping
from jobs.contrib.results.said import SIZE, heard, leave, memory
from jobs.errors import LostLease
from jobs.lifecycle import transitions
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job
from jobs.store import databases
from tests import tasks
from tests.helpers.concurrency import end_session
from tests.helpers.gates import once_only, wait_for_file
from tests.helpers.harness import Worker, claim, deliver, effects, in_body, run, wait_ended, wait_state
from tests.helpers.redactions import SECRET, of_job, redact, text_of
from tests.helpers.rows import make, say
from tests.helpers.servers import wait_for
from tests.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


def said_by(key: object) -> progress.Progress | None:
    return progress.of([Job.objects.get(pk=str(key))]).get(uuid.UUID(str(key)))


# On the worker state


@pytest.fixture
def slot():
    taken = worker_state.take()
    yield taken
    taken.free()


def test_only_the_last_word_is_heard_and_once(slot):
    known: dict[int, int] = {}
    list(heard(known))
    worker_state.note_heartbeat()
    for number in range(1000):
        assert leave(slot, str(number).encode())
    assert list(heard(known)) == [b"999"]
    assert list(heard(known)) == []


def test_what_nobody_would_write_is_not_taken(slot):
    known: dict[int, int] = {}
    list(heard(known))
    assert not leave(slot, b"no supervisor beats")
    worker_state.note_heartbeat()
    assert not leave(slot, b"x" * 2001)
    assert list(heard(known)) == []
    # It takes back what was not heard yet: the caller writes the newer word by itself.
    leave(slot, b"old")
    assert not leave(slot, b"x" * 2001)
    assert list(heard(known)) == []


def test_a_word_in_which_the_process_died_is_not_heard(slot):
    known: dict[int, int] = {}
    list(heard(known))
    worker_state.note_heartbeat()
    leave(slot, b"whole")
    place = slot.index * SIZE
    memory[place] = memory[place] | 1
    assert list(heard(known)) == []
    leave(slot, b"next")
    assert list(heard(known)) == [b"next"]


# From the body to people


@shared_task(bind=True)
def says(self, started="", gate="", times=1):
    """Says how far it is, in the transaction of its body."""
    Effect.objects.create(key="said")
    for number in range(times):
        self.progress(number + 1, 2 * times, f"part {number + 1}")
    if gate:
        once_only(started)
        wait_for_file(gate)


@pytest.mark.slow
@pytest.mark.core
def test_progress_is_seen_while_the_transaction_of_the_body_is_open(tmp_path, capsys):
    """On SQLite the body holds the only write lock meanwhile."""
    with Worker(concurrency=1):
        result = says.delay(str(tmp_path / "started"), str(tmp_path / "gate"), times=500)
        in_body(result.id, tmp_path / "started")
        said = wait_for(lambda: said_by(result.id), 5, "progress")
        assert (said.percent, said.text, effects()) == (50, "part 500", {})
        assert (AsyncResult(result.id).state, AsyncResult(result.id).info["current"]) == ("PROGRESS", 500)
        (tmp_path / "gate").touch()
        wait_ended(result.id)
    assert effects() == {"said": 1}
    assert (said_by(result.id), public.of(Job.objects.get())["percent"]) == (None, 100)


def test_a_word_costs_the_body_no_statement(node):
    worker_state.note_heartbeat()
    known: dict[int, int] = {}
    list(heard(known))
    counts = []
    for times in (1, 1000):
        job = claim(says.delay(times=times).id)
        with CaptureQueriesContext(connection) as queries:
            run(job)
        counts.append(len(queries))
    assert counts[0] == counts[1]
    with databases.side() as side:
        assert side.execute("SELECT id FROM jobs_stored_result") == []


@shared_task(bind=True, atomic=False)
def in_parts(self, parts, started="", gate=""):
    """Commits part by part, and waits in the middle of the third; a later run does not."""
    done = self.job.cursor or 0
    while done < parts:
        with transaction.atomic():
            Effect.objects.create(key=f"part-{done}", pid=os.getpid(), note=str(self.job.lease))
            if done == 2 and gate and once_only(started):
                wait_for_file(gate)
            done += 1
            self.job.save_cursor(done)
        self.progress(done, parts)
    return done


def test_without_a_supervisor_the_body_writes_by_itself(node):
    """As in tests of a project."""
    result = in_parts.delay(4)
    deliver(result)
    with databases.side() as side:
        [(meta,)] = side.execute("SELECT meta FROM jobs_stored_result")
    assert json.loads(meta)["result"]["current"] == 4


def test_a_later_run_is_not_overwritten_nor_somebodys_wish_to_abort(node):
    job = claim(tasks.noop.delay().id)
    earlier = claim_again(job)
    say(job, 2)
    say(earlier, 1)
    assert said_by(job.pk).done == 2
    assert AbortableAsyncResult(str(job.pk)).abort() is None
    say(job, 3)
    assert AsyncResult(str(job.pk)).state == ABORTED


def claim_again(job: Job) -> Job:
    """The run before; the job is that of the next one."""
    earlier = Job.objects.get(pk=job.pk)
    transitions.hand_back(Job.objects.get(pk=job.pk), 0)
    job.__dict__.update(claim(job.pk).__dict__)
    return earlier


def test_a_zombie_that_writes_by_itself_does_not_overwrite_a_later_run():
    store = results.Store()
    for lease in (2, 1):
        store.write("a", json.dumps({"status": "PROGRESS", "result": lease}), 60, lease)
    assert store.read(["a"])["a"][1] == 2
    for lease in (2, 3):
        store.write("a", "{}", 60, lease)
        assert store.read(["a"])["a"] == ("{}", lease)


def test_what_one_body_says_does_not_keep_others_from_being_heard(slot, monkeypatch):
    """It cannot be kept: an id that is longer than the column, say."""
    other, written = worker_state.take(), []
    process = Keeping(os.getpid(), {"pool": "prefork"}, -1, -1)

    def write(side, text):
        if b"bad" in text:
            raise DataError("value too long")
        written.append(text)

    monkeypatch.setattr(results, "write_said", write)
    try:
        process._pass_on()
        del written[:]
        worker_state.note_heartbeat()
        for each in (slot, other):
            assert leave(each, b"bad")
        process._pass_on()
        for each in (slot, other):
            assert leave(each, b"good")
        process._pass_on()
        assert leave(slot, b"bad")
        assert leave(other, b"better")
        process._pass_on()
        assert leave(other, b"bad")
        assert leave(slot, b"best")
        process._pass_on()
    finally:
        other.free()
    assert written == [b"good", b"good", b"better", b"best"]


@pytest.mark.parametrize(("done", "total"), [(1, 5e-324), (10**308, 1), (-(10**308), 5e-324), (1e308, -1)])
def test_any_finite_numbers_are_a_percentage(done, total):
    assert 0 <= progress.Progress(done, total, "").percent <= 99


def test_the_next_run_begins_with_nothing_said(node):
    job = claim(tasks.noop.delay().id)
    say(job, 1)
    assert said_by(job.pk).percent == 25
    claim_again(job)
    assert said_by(job.pk) is None


@pytest.mark.parametrize(
    ("given", "error"),
    [(("1", 2), TypeError), ((True, 2), TypeError), ((1, "2"), TypeError), ((1, float("nan")), ValueError)],
)
def test_what_is_no_number_is_refused(node, given, error):
    job = claim(tasks.noop.delay().id)
    with pytest.raises(error, match="progress"):
        progress.say(type("Run", (), {"job": job, "slot": None}), *given, "")


def test_a_number_that_is_too_large_draws_no_bar():
    assert progress._read(json.dumps({"result": {"current": 10**400, "total": 1}})) is None


def test_update_state_with_other_words_draws_no_bar(node):
    job = claim(tasks.noop.delay().id)
    for result in ({"done": 1}, {"current": "x"}, ["x"], None, {"current": float("inf")}):
        results.Store().write(job.task_id, json.dumps({"status": "PROGRESS", "result": result}), None, job.lease)
        assert said_by(job.pk) is None


# What people see


def test_the_admin_draws_a_bar(staff):
    client, job = staff("view_job"), make("running")
    listed, page = reverse("admin:jobs_job_changelist"), reverse("admin:jobs_job_change", args=[job.pk])
    assert b"<progress" not in client.get(listed).content
    say(job, 1, text="<the first>")
    for url in (listed, page):
        text = client.get(url).content.decode()
        assert '<progress class="job-bar" max="100" value="25"' in text
        assert "25 % &lt;the first&gt;" in text
    assert client.get(listed).content.count(b"<progress") == 1


def test_show_says_and_follows_it(capsys):
    job = make("running")
    say(job, 3, text="nearly")
    call_command("jobs", "show", str(job.pk), "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["progress"] == {"done": 3, "total": 4, "text": "nearly", "percent": 75}
    Job.objects.filter(pk=job.pk).update(state="cancelled", finished_at=job.started_at)
    call_command("jobs", "show", "--follow", str(job.pk))
    assert capsys.readouterr().out.startswith("cancelled 75 % nearly\nid ")


def render(job: object) -> str:
    return Template("{% load jobs %}{% job_progress job %}").render(Context({"job": job, "csp_nonce": "n0nce"}))


def test_a_sites_own_page_shows_it_by_a_tag_and_a_signed_address(client):
    job = make("running", args=["s3cret"])
    say(job, 1, text="<one>")
    page = render(job)
    assert page == render(str(job.pk)) == render(job.pk)
    assert 'value="25"' in page
    assert "running: &lt;one&gt;" in page
    assert '<script nonce="n0nce">' in page
    url = reverse("jobs:progress", args=[public.token_of(job)])
    response = client.get(url)
    assert response.json() == {
        "state": "running", "percent": 25, "text": "<one>", "label": "running", "is_over": False,
    }  # fmt: skip
    assert "no-store" in response["Cache-Control"]
    Job.objects.filter(pk=job.pk).update(state="succeeded", finished_at=job.started_at)
    assert client.get(url).json()["percent"] == 100
    assert client.post(url).status_code == 405
    assert "<script" not in render(str(job.pk))


def test_nobody_asks_for_a_job_by_its_id(client):
    job = make("running")
    other = public.token_of(make("running")).partition(":")[2]
    for token in (str(job.pk), f"{job.pk}:x", f"{job.pk}:{other}", "x"):
        assert client.get(reverse("jobs:progress", args=[token])).status_code == 404
    token = public.token_of(job)
    job.delete()
    assert client.get(reverse("jobs:progress", args=[token])).status_code == 404


def test_the_tag_shows_nothing_of_a_job_that_is_gone():
    assert [render(job).strip() for job in (None, "", uuid.uuid4(), str(uuid.uuid4()))] == [""] * 4


# The cursor


def test_the_cursor_is_part_of_the_commit(node):
    job = claim(tasks.noop.delay().id)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        job.save_cursor(1)
        raise ZeroDivisionError()
    assert Job.objects.get().cursor is None
    with transaction.atomic():
        job.save_cursor(2)
    assert (job.cursor, Job.objects.get().cursor) == (2, 2)


@pytest.mark.parametrize(
    "value", [0, "x", [1, {"a": None}], uuid.UUID(int=7), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)]
)
def test_a_cursor_comes_back_as_what_it_was(node, value):
    job = claim(tasks.noop.delay().id)
    job.save_cursor(value)
    transitions.hand_back(job, 0)
    found = claim(job.pk).cursor
    assert (found, type(found)) == (value, type(value))


def test_a_cursor_that_is_not_json_is_refused(node):
    with pytest.raises(TypeError, match="the cursor"):
        claim(tasks.noop.delay().id).save_cursor(object())


def test_a_zombie_saves_no_cursor_and_rolls_back(node):
    from tests.models import Effect

    zombie = claim(tasks.noop.delay().id)
    transitions.hand_back(Job.objects.get(pk=zombie.pk), 0)
    claim(zombie.pk)
    with pytest.raises(LostLease), transaction.atomic():
        Effect.objects.create(key="zombie")
        zombie.save_cursor(1)
    assert (effects(), Job.objects.get().cursor) == ({}, None)


@shared_task(bind=True, atomic=False, max_retries=0)
def outlives_its_session(self, key):
    Effect.objects.create(key=key)
    end_session()
    self.job.save_cursor(1)


@pytest.mark.database
@pytest.mark.skipif(connection.vendor == "sqlite", reason="no server ends a connection")
def test_work_is_not_done_again_because_its_session_ended_before_the_cursor(node):
    assert deliver(outlives_its_session.delay("a"))[0] == "SUCCESS"
    job = Job.objects.get()
    assert (job.state, job.lease, job.cursor, effects()) == ("succeeded", 1, 1, {"a": 1})


def test_an_atomic_body_has_no_cursor(node, monkeypatch):
    monkeypatch.setattr(in_parts._get_current_object(), "atomic", True)
    deliver(in_parts.delay(1))
    error = Job.objects.get().error
    assert (error["type"], "atomic=False" in error["message"]) == ("TypeError", True)
    assert effects() == {}


def test_in_a_plain_call_the_cursor_is_only_set():
    with CaptureQueriesContext(connection) as queries:
        assert in_parts(2) == 2
    assert not [query for query in queries if "jobs_job" in query["sql"]]


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("how", ["crash", "kill and retry"])
def test_the_next_run_goes_on_where_the_last_commit_was(how, tmp_path):
    with Worker(concurrency=1):
        result = in_parts.delay(5, str(tmp_path / "started"), str(tmp_path / "gate"))
        pid = in_body(result.id, tmp_path / "started")
        if how == "crash":
            os.kill(pid, signal.SIGKILL)
        else:
            call_command("jobs", "kill", result.id)
            wait_state(result.id, "cancelled")
            assert Job.objects.get().cursor == 2
            call_command("jobs", "retry", result.id)
        [job] = wait_ended(result.id)
    assert (job.state, job.result, job.cursor, job.lease) == ("succeeded", 5, 5, 2)
    assert effects() == {f"part-{n}": 1 for n in range(5)}
    connections.close_all()


@pytest.mark.parametrize("letter", ["ж", "\U0001f69a"])
def test_progress_in_other_letters_costs_no_statement(node, monkeypatch, letter):
    worker_state.note_heartbeat()
    written = []
    monkeypatch.setattr(results.Store, "write", lambda self, *args: written.append(args))
    run = type("Run", (), {"slot": worker_state.take(), "job": Job(id=uuid.uuid4(), lease=1)})()
    try:
        progress.say(run, 1, 1000, letter * 500)
        assert not written
    finally:
        run.slot.free()


def test_progress_does_not_tell_it(settings, admin_client, client):
    job = make("running", kwargs={"note": SECRET})
    results.Store().write(job.task_id, said_of(f"writes to {SECRET}"), 60.0, job.lease)
    token = public.token_of(job)
    redact(settings)
    pages = text_of(admin_client, ("job_change", [job.pk]), ("job_changelist", []), ("dashboard", []))
    text = pages + of_job(job) + json.dumps(public.of(public.by_token(token)))
    assert SECRET not in text
    assert "writes to ***" in text


def said_of(text: str) -> str:
    return json.dumps({"status": "PROGRESS", "result": {"current": 1, "total": 2, "description": text}})
