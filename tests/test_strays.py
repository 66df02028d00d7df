"""Messages that cannot be run: put aside as rows, and nobody stops."""

from __future__ import annotations

import json
import uuid
from types import SimpleNamespace

import pytest
from celery import current_app
from django.db.models.functions import Now

from jobs import lifecycle, strays
from jobs.models import Job
from tests import tasks
from tests.harness import Worker, effects, wait_ended
from tests.servers import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.core]


#: As kombu hands it over.
MESSAGE = {"headers": {}, "payload": None, "body": "", "delivery_info": {}, "properties": {}}


def send(body: str, *, content_type: str = "application/json", **headers: object) -> None:
    with current_app.connection_for_write() as connection:
        producer = current_app.amqp.Producer(connection)
        producer.publish(
            body,
            content_type=content_type,
            content_encoding="utf-8",
            headers=headers,
            routing_key=current_app.conf.task_default_queue,
            exchange="",
            declare=[current_app.amqp.queues[current_app.conf.task_default_queue]],
        )


def kept(key: str) -> Job:
    return wait_for(lambda: Job.objects.filter(pk=key).first(), 10, "the message became a row")


def test_messages_that_nobody_can_read_become_rows_and_stop_nobody():
    good, name = json.dumps([["x"], {}, {}]), "tests.tasks.effect"
    cases = {
        str(uuid.uuid4()): ("{broken", {"task": name}),
        str(uuid.uuid4()): ('"no triple"', {"task": name}),
        str(uuid.uuid4()): (good, {"task": name, "eta": "soon"}),
        str(uuid.uuid4()): (good, {"task": name, "expires": "never"}),
        str(uuid.uuid4()): (good, {"not": "a task"}),
    }
    with Worker(concurrency=1) as worker:
        for key, (body, headers) in cases.items():
            send(body, id=key, lang="py", **headers)
        send(good, task=name, lang="py")  # no id
        send("no headers at all")
        for key in cases:
            job = kept(key)
            assert (job.state, bool(job.error["message"])) == ("failed", True)
        wait_for(lambda: Job.objects.count() == len(cases) + 2, 10, "those without an id as well")
        wait_ended(tasks.effect.delay("after").id)
        assert worker.process.poll() is None
        assert "Unrecoverable" not in worker.text()
    assert effects() == {"after": 1}


def test_a_directory_of_somebody_else_is_not_ours(tmp_path, monkeypatch):
    """Whoever knows the broker and the database could make it first, in a folder that everybody may write to."""
    (tmp_path / "planted.json").write_text("{}")
    monkeypatch.setattr("os.getuid", lambda: tmp_path.stat().st_uid + 1)
    assert strays.keep_all(tmp_path) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["planted.json"]
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        strays.put_aside(tmp_path, "MalformedMessage", SimpleNamespace(**MESSAGE), ValueError())


@pytest.mark.parametrize("database", ["nowhere", 5, None])
def test_a_message_of_a_database_that_is_not_known_here_is_left_to_others(database):
    """A row here would be a second job; the real one's relay sends another message."""
    key = str(uuid.uuid4())
    with Worker(concurrency=1) as worker:
        send(json.dumps([["x"], {}, {}]), id=key, task="tests.tasks.effect", jobs={"v": 1, "db": database, "at": 0})
        wait_for(lambda: f"[{key}] lives in the database" in worker.text(), 10, "it says so")
        wait_ended(tasks.effect.delay("after").id)
    assert not Job.objects.filter(pk=key).exists()
    assert effects() == {"after": 1}


def test_an_undecodable_copy_of_a_job_leaves_the_job_alone():
    result = tasks.effect.apply_async(("a",), countdown=600)
    with Worker(concurrency=1) as worker:
        send("{broken", id=result.id, task="tests.tasks.effect", lang="py", jobs={"v": 1, "db": "default", "at": 0})
        wait_for(lambda: "its message is put aside" in worker.text(), 10, "the copy arrived")
        Job.objects.filter(pk=result.id, state="scheduled").update(run_at=lifecycle.now_plus(0))
        [job] = wait_ended(result.id)
    assert (job.state, job.lease) == ("succeeded", 1)


def test_a_task_that_no_worker_knows_waits_for_one_that_does():
    """A rolling deploy: the old worker gets the new task first."""
    ours = tasks.effect.delay("ours")
    foreign = str(uuid.uuid4())
    with Worker(concurrency=1, JOBS_TEST_FORGET="tests.tasks.effect"):
        send(json.dumps([["foreign"], {}, {}]), id=foreign, task="tests.tasks.effect", lang="py")
        for key in (ours.id, foreign):
            job = wait_for(lambda key=key: Job.objects.filter(pk=key, error__isnull=False).first(), 10, "put aside")
            assert (job.state, job.error["type"], job.lease) == ("scheduled", "NotRegistered", 0)
            assert "tests.tasks.effect" in job.error["message"]
    with Worker(concurrency=1):
        jobs = wait_ended(ours.id, foreign)
    assert [(job.state, len(job.errors)) for job in jobs] == [("succeeded", 1)] * 2
    assert effects() == {"ours": 1, "foreign": 1}


def test_a_message_by_name_becomes_a_job():
    with Worker(concurrency=1):
        result = current_app.send_task("tests.tasks.effect", ("a",), countdown=0.2)
        [job] = wait_for(lambda: Job.objects.filter(pk=result.id), 10, "adopted") and wait_ended(result.id)
    assert (job.state, job.lease) == ("succeeded", 1)
    assert effects() == {"a": 1}


def test_a_message_by_name_whose_process_dies_runs_in_the_end(tmp_path):
    with Worker(concurrency=1, sync="before_claim=kill"):
        result = current_app.send_task("tests.tasks.effect", ("a",))
        wait_for(lambda: Job.objects.filter(pk=result.id, state="succeeded").exists(), 20, "it ran")
    assert effects() == {"a": 1}


def test_a_job_of_a_later_release_waits_for_a_worker_that_knows_its_version():
    """However the message looks by then: nobody here reads more of it than its version."""
    ours = tasks.effect.apply_async(("ours",), countdown=60)
    Job.objects.update(state="ready", dispatched_at=Now())
    gone = str(uuid.uuid4())
    for key in (gone, ours.id):
        send('"of another shape"', id=key, task="tests.tasks.effect", jobs={"v": 2, "db": "default"})
    with Worker(concurrency=1) as worker:
        job = wait_for(lambda: Job.objects.filter(pk=ours.id, error__isnull=False).first(), 10, "put aside")
        assert (job.state, job.lease, job.error["type"]) == ("scheduled", 0, "NewerVersion")
        assert job.error["message"].endswith("a job of version 2, and this worker runs 1 at the most")
        [job] = wait_ended(ours.id)
        assert job.state == "succeeded", "the row itself is of a version that everybody knows"
        assert worker.process.poll() is None
    assert not Job.objects.filter(pk=gone).exists(), "pruned, or never committed"
