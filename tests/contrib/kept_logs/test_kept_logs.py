"""``JOBS["KEEP_LOGS"]``: what a body logged stands beside its job."""

import asyncio
import datetime
import html
import json
import logging
import re
from contextlib import suppress
from unittest.mock import Mock

import pytest
from celery import current_app, shared_task
from django.core.management import call_command
from django.db import connection
from django.utils import timezone

from jobs import store
from jobs.conf import problems
from jobs.contrib.forgetting.forget import forget
from jobs.contrib.grouped import group
from jobs.contrib.grouped.runner import GroupingRunner
from jobs.contrib.kept_logs import lines
from jobs.contrib.kept_logs.models import LogLines
from jobs.contrib.pruning import prune
from jobs.lifecycle import transitions
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job
from jobs.testing import run_jobs
from tests.contrib.kept_logs import tasks
from tests.helpers.admin_list import page
from tests.helpers.concurrency import Elsewhere
from tests.helpers.driver import executed
from tests.helpers.harness import run_ready

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


# Not in ``tasks.py``: a worker of other tests would have a loop beside each of its processes.
@shared_task
async def awaits():
    tasks.logger.info("before")
    await asyncio.sleep(0)
    tasks.logger.info("after")


@pytest.fixture(autouse=True)
def keeping(settings, caplog):
    caplog.set_level("DEBUG", "tests.said")
    settings.JOBS = {**settings.JOBS, "KEEP_LOGS": {"*": "INFO"}}


def said(job=None):
    """Of each attempt, in their order, the messages."""
    rows = LogLines.objects.order_by("attempt", "pk")
    rows = rows if job is None else rows.filter(job=job.id)
    return {row.attempt: [line[-1] for line in row.lines["first"] + row.lines["last"]] for row in rows}


def test_the_lines_of_any_logger_with_time_level_and_name():
    job = tasks.says.delay()
    run_jobs()
    row = LogLines.objects.get(job=job.id)
    assert [line[1:] for line in row.lines["first"]] == [
        ["INFO", "tests.said", "hello, it begins"],
        # It does not propagate to the root.
        ["WARNING", "tests.contrib.kept_logs.tasks", "by Celery's own logger"],
    ]
    age = timezone.now().timestamp() - row.lines["first"][0][0]
    assert 0 <= age < 60
    assert (row.attempt, row.lines["dropped"]) == (1, 0)


def test_those_of_a_body_that_failed_stay():
    job = tasks.says.delay(fails=True)
    run_jobs(raises=False)
    assert Job.objects.get().state == "failed"
    assert said(job) == {1: ["hello, it begins", "by Celery's own logger"]}


def test_each_attempt_has_its_own():
    job = tasks.again.delay()
    run_jobs()
    assert said(job) == {1: ["attempt of 0"], 2: ["attempt of 1"], 3: ["attempt of 2"]}


def test_of_an_async_body(node):
    job = awaits.delay()
    run_ready()
    assert said(job) == {1: ["before", "after"]}


def test_of_each_run_of_a_durable_task():
    job = tasks.durable.delay()
    run_jobs()
    run_jobs(until=timezone.now() + datetime.timedelta(hours=2))
    assert said(job) == {1: ["the step"], 2: ["it goes on"]}


def test_of_a_group_each_has_its_own_and_one_that_is_rolled_back_none_twice(node, settings, monkeypatch):
    monkeypatch.setattr("jobs.worker.runner.BATCH_TIME", 100.0)
    monkeypatch.setattr("jobs.contrib.grouped.runner.GROUP_TIME", 60.0)
    worker_state.queues = [current_app.conf.task_default_queue]
    runner = GroupingRunner(current_app._get_current_object(), "here")
    runner._means, runner._next = {tasks.grouped.name: 0.001}, 100
    monkeypatch.setattr(group, "run", groups := Mock(wraps=group.run))
    try:
        for fails in (False, True):
            found = [tasks.grouped.delay(number, fails and number == 2) for number in range(3)]
            runner.run_batch()
            assert groups.called
            assert [said(job) for job in found] == [{1: [f"number {number}"]} for number in range(3)]
    finally:
        runner.slot.free()


def test_where_the_level_is_lower_there_is_more_and_a_later_pattern_wins(settings):
    own = {"*": "INFO", "tests.contrib.kept_logs.*": "DEBUG"}
    settings.JOBS = {**settings.JOBS, "KEEP_LOGS": own}
    job = tasks.says.delay()
    run_jobs()
    assert said(job)[1][1] == "a detail"
    settings.JOBS = {**settings.JOBS, "KEEP_LOGS": {"*": "DEBUG", "tests.contrib.kept_logs.*": "ERROR"}}
    tasks.says.delay()
    run_jobs()
    assert LogLines.objects.count() == 1


def test_one_statement_more_and_where_nothing_is_kept_none(settings, monkeypatch):
    def statements():
        tasks.says.delay()
        with executed(monkeypatch) as taken:
            run_jobs()
        return [sql for sql in taken if "jobs_log_lines" in sql], len(taken)

    own, many = statements()
    assert len(own) == 1
    settings.JOBS = {**settings.JOBS, "KEEP_LOGS": {}}
    assert not any(key == "jobs.contrib.kept_logs" for end in lines.ENDS for (key, _), *_ in end.receivers)
    own, few = statements()
    assert own == []
    # On PostgreSQL psycopg's own are not among them.
    assert few < many


def test_first_and_last_of_too_many(settings):
    job = tasks.much.delay(1000)
    run_jobs()
    kept = LogLines.objects.get(job=job.id).lines
    numbers = [int(line[-1][:5]) for line in kept["first"] + kept["last"]]
    assert numbers == [*range(100), *range(900, 1000)]
    assert kept["dropped"] == 800
    tasks.much.delay(100, 3000)
    run_jobs()
    kept = LogLines.objects.order_by("-pk").first().lines
    assert sum(len(line[-1]) for line in kept["first"] + kept["last"]) <= lines.SIZE
    assert len(kept["first"] + kept["last"]) + kept["dropped"] == 100
    tasks.much.delay(1, 1_000_000)
    run_jobs()
    [line] = LogLines.objects.order_by("-pk").first().lines["first"]
    assert len(line[-1]) <= lines.LONGEST


def test_only_the_last_attempts_have_lines(monkeypatch):
    monkeypatch.setattr(lines, "ATTEMPTS", 2)
    job = tasks.again.delay()
    run_jobs()
    assert [*said(job)] == [2, 3]


def test_what_cannot_be_formatted_or_stored_harms_nobody(monkeypatch):
    # Else it is written to stderr.
    monkeypatch.setattr(logging, "raiseExceptions", False)
    tasks.odd.delay()
    run_jobs()
    bad, good = said()[1]
    assert bad.startswith("%s and %s ('one',)")
    assert good.startswith("with a NUL \\x00, and a traceback\nTraceback")
    assert good.endswith("KeyError: 'gone'")


def test_a_table_that_is_away_harms_no_job(caplog):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE jobs_log_lines RENAME TO gone")
    try:
        tasks.says.delay()
        run_jobs()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE gone RENAME TO jobs_log_lines")
    assert Job.objects.get().state == "succeeded"
    assert [record.action for record in caplog.records if record.name == "jobs"].count("log_lines_lost") == 1


def test_a_run_that_lost_its_job_keeps_none():
    if store.of("default").has_one_writer:
        pytest.skip("nobody else can write while the body does")
    job = tasks.says.delay()

    def lose(record):
        Elsewhere(lambda: Job.objects.filter(pk=job.id).update(token=1)).result()
        return True

    tasks.logger.addFilter(lose)
    try:
        run_jobs(raises=False)
    except Exception as exc:
        assert "LostLease" in repr(exc)  # noqa: PT017
    finally:
        tasks.logger.removeFilter(lose)
    assert not LogLines.objects.exists()


def test_lines_outside_of_bodies_are_nobodys():
    tasks.logger.warning("outside")
    tasks.says.delay()
    run_jobs()
    tasks.logger.warning("outside")
    assert "outside" not in str(said())


def test_they_are_deleted_with_the_job():
    tasks.says.delay()
    run_jobs()
    job = Job.objects.get()
    Job.objects.filter(pk=job.pk).update(finished_at=transitions.now_plus(-1e7))
    assert prune.delete_old([job.pk], "default") == 1
    assert not LogLines.objects.exists()


def test_to_forget_a_person_is_to_forget_them():
    tasks.says.apply_async(("ada@example.com",), tags={"user": 5})
    run_jobs()
    assert "ada@example.com" in str(said())
    assert forget({"user": 5}).jobs == 1
    assert not LogLines.objects.exists()


def test_a_part_of_the_page(viewer):
    tasks.again.delay()
    tasks.much.delay(300)
    run_jobs()
    again, much = Job.objects.order_by("pk")
    text = html.unescape(viewer.get(page(again)).content.decode())
    assert re.findall(r"<summary>(Attempt \d)</summary>", text) == ["Attempt 3", "Attempt 2", "Attempt 1"]
    assert text.count("<details open") >= 1
    assert "attempt of 1" in text.partition('id="job-log"')[2]
    assert "100 more were dropped" in viewer.get(page(much)).content.decode()


def test_what_a_body_says_is_text(viewer):
    tasks.says.delay("<script>alert(1)</script>")
    run_jobs()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;, it begins" in viewer.get(page(Job.objects.get())).content.decode()


def test_the_command(capsys):
    tasks.again.delay()
    run_jobs()
    key = str(Job.objects.get().pk)
    call_command("jobs", "logs", key)
    text = capsys.readouterr().out
    assert re.findall(r"^attempt \d$", text, re.M) == ["attempt 1", "attempt 2", "attempt 3"]
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO     tests\.said: attempt of 0$", text, re.M)
    call_command("jobs", "logs", key, "--attempt", "2", "--json")
    [found] = json.loads(capsys.readouterr().out)
    assert (found["attempt"], found["dropped"]) == (2, 0)
    assert [line["message"] for line in found["lines"]] == ["attempt of 1"]
    LogLines.objects.all().delete()
    call_command("jobs", "logs", key)
    assert "JOBS['KEEP_LOGS']" in capsys.readouterr().out


def test_redaction_holds_for_them(settings, viewer, capsys):
    settings.JOBS = {**settings.JOBS, "REDACT": f"{__name__}.hide"}
    tasks.says.delay("ada@example.com")
    run_jobs()
    job = Job.objects.get()
    call_command("jobs", "logs", str(job.pk))
    for text in (viewer.get(page(job)).content.decode(), capsys.readouterr().out):
        assert "ada@example.com" not in text
        assert "***, it begins (log)" in text


def hide(task, name, value):
    return f"{value} (log)" if name == "log" else "***" if name == "text" else value


def secret(iban):
    tasks.logger.info("pays to %s", iban)


def test_what_is_encrypted_is_so_in_them(settings, staff, capsys, declare):
    fernet = pytest.importorskip("cryptography.fernet").Fernet
    own = {"ENCRYPT": {"t.secret": True}, "ENCRYPT_KEYS": [fernet.generate_key().decode()]}
    settings.JOBS = {**settings.JOBS, **own}
    declare(name="t.secret", body=secret).delay("DE02-s3cret")
    run_jobs()
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM jobs_log_lines")
        assert "s3cret" not in str(cursor.fetchall())
    job = Job.objects.get()
    call_command("jobs", "logs", str(job.pk))
    assert "(encrypted)" in (text := capsys.readouterr().out)
    assert "s3cret" not in text
    client = staff("view_job", "decrypt_job")
    assert "pays to DE02-s3cret" in client.get(page(job)).content.decode()
    own["ENCRYPT_KEYS"] = [fernet.generate_key().decode()]
    settings.JOBS = {**settings.JOBS, **own}
    text = client.get(page(job)).content.decode()
    assert "s3cret" not in text
    assert "no key reads them here" in text


def test_who_may_not_decrypt_reads_none(settings, viewer, declare):
    fernet = pytest.importorskip("cryptography.fernet").Fernet
    own = {"ENCRYPT": {"t.secret": True}, "ENCRYPT_KEYS": [fernet.generate_key().decode()]}
    settings.JOBS = {**settings.JOBS, **own}
    declare(name="t.secret", body=secret).delay("DE02-s3cret")
    run_jobs()
    text = viewer.get(page(Job.objects.get())).content.decode()
    assert "s3cret" not in text
    assert "so are its lines" in text


@pytest.mark.parametrize("given", ["INFO", {"*": "LOUD"}, {"*": 20}, True])
def test_what_cannot_be_meant(settings, given):
    settings.JOBS = {**settings.JOBS, "KEEP_LOGS": given}
    assert "must be a dict of levels" in problems()[0]


def test_a_record_that_is_made_without_a_level_harms_no_body():
    """``logging.makeLogRecord()`` fills the level in later: structlog makes each line so."""
    job = tasks.copies.delay()
    run_jobs()
    assert said(job) == {1: ["and goes on"]}


def test_a_message_that_cannot_be_text_is_said_to_be_so():
    class Unsayable:
        def __str__(self):
            raise ZeroDivisionError

    record = logging.makeLogRecord({"name": "a", "levelname": "INFO", "msg": Unsayable()})
    assert "ZeroDivisionError" in lines._line(record)[-1]


def test_a_job_that_was_deleted_since_its_end_gets_no_lines(monkeypatch):
    tasks.says.delay()
    monkeypatch.setattr(lines, "hidden", lambda task, said: Job.objects.all()._raw_delete("default") and said)
    with suppress(Job.DoesNotExist):
        run_jobs()
    assert not LogLines.objects.exists()


def test_the_newest_attempts_that_said_something_have_lines(monkeypatch):
    """A claim that ran no body says nothing, and takes nobody's place."""
    monkeypatch.setattr(lines, "ATTEMPTS", 2)
    job = tasks.says.delay()
    LogLines.objects.bulk_create(
        LogLines(job=job.id, attempt=number, lines={"first": [], "dropped": 0, "last": []}) for number in (1, 3)
    )
    Job.objects.filter(pk=job.id).update(lease=40)
    run_jobs()
    assert sorted(LogLines.objects.values_list("attempt", flat=True)) == [3, 41]
