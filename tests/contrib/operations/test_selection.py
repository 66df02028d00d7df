"""Retry, cancel and run all jobs that have something in common."""

from __future__ import annotations

import datetime
import io
import json
import uuid

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from jobs.contrib.console.base import me
from jobs.contrib.operations import by_hand
from jobs.contrib.operations.actions import OPERATIONS, RunNow
from jobs.contrib.operations.selection import Selection, moment
from jobs.models import Action, Job, Marker
from tests import tasks
from tests.helpers.harness import deliver
from tests.helpers.rows import ERROR, make

pytestmark = pytest.mark.django_db(transaction=True)


def run(*args: str) -> str:
    out = io.StringIO()
    call_command("jobs", *args, stdout=out)
    return out.getvalue()


def states(*jobs: Job) -> list[str]:
    return [Job.objects.get(pk=job.pk).state for job in jobs]


def test_everything_that_is_given_has_to_fit():
    smtp = {**ERROR, "type": "SMTPConnectError"}
    wanted = make("failed", task="shop.mail", queue="mail", error=smtp)
    others = [
        make("failed", task="shop.mail", queue="mail"),
        make("failed", task="shop.mail", queue="other", error=smtp),
        make("failed", task="shop.pay", queue="mail", error=smtp),
        make("failed", task="shop.mail", queue="mail", error=smtp, age=7200),
        make("cancelled", task="shop.mail", queue="mail", error=smtp),
    ]
    which = ["--task", "shop.mail", "--queue", "mail", "--error", "SMTPConnectError", "--since", "1h"]
    assert run("retry", *which, "--dry-run") == "1 would be retried, 0 refused\n"
    assert states(wanted) == ["failed"]
    assert run("retry", *which) == "1 retried, 0 refused\n"
    assert states(wanted) == ["ready"]
    assert states(*others) == ["failed"] * 4 + ["cancelled"]
    assert run("retry", "--task", "shop.*", "--state", "cancelled") == "1 retried, 0 refused\n"


def test_more_than_a_batch(settings):
    settings.JOBS = {**settings.JOBS, "BATCH": 7}
    for _ in range(50):
        make("ready")
    assert run("cancel", "--state", "ready") == "50 cancelled, 0 refused\n"
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}


def test_those_that_are_refused_stop_no_other():
    one, plain = make("failed", unique_key="monday", unique_until="started"), make("failed")
    holder = make("ready", unique_key="monday", unique_until="started")
    out = io.StringIO()
    with pytest.raises(CommandError, match=r"1 of 2 could not be retried\."):
        call_command("jobs", "retry", "--state", "failed", "--json", stdout=out)
    found = json.loads(out.getvalue())
    assert (found["done"], [each["id"] for each in found["refused"]]) == (1, [str(one.pk)])
    assert str(holder.pk) in found["refused"][0]["why"]
    assert states(plain) == ["ready"]


def test_run_makes_due_what_waits():
    soon = timezone.now() + datetime.timedelta(hours=3)
    scheduled, ready, failed = make("scheduled", run_at=soon), make("ready"), make("failed")
    out = io.StringIO()
    with pytest.raises(CommandError, match="2 of 3 could not be made due"):
        call_command("jobs", "run", *(str(job.pk) for job in (scheduled, ready, failed)), stdout=out)
    assert out.getvalue().splitlines() == [
        f"{scheduled.pk} made due (was scheduled)",
        f"{ready.pk} is ready: it does not wait for its time (jobs why says what it waits for)",
        f"{failed.pk} is failed: it does not wait; retry it",
    ]
    scheduled.refresh_from_db()
    assert scheduled.state == "ready"
    assert scheduled.run_at < soon


def test_a_second_person_who_makes_the_same_job_due_is_told_so(monkeypatch):
    """The first one was faster, and the row is ready when the second one writes."""
    job = make("scheduled", run_at=timezone.now() + datetime.timedelta(hours=3))
    prepare, first = RunNow.prepare, []

    def somebody_was_faster(self, key, using):
        prepare(self, key, using)
        if not first:
            first.append(by_hand.run_now(key, using))

    monkeypatch.setattr(RunNow, "prepare", somebody_was_faster)
    outcome = OPERATIONS["run"].attempt(job.pk)
    assert (first, outcome.is_done) == ([True], False)
    assert not Action.objects.exists()


@pytest.mark.parametrize("arguments", [[], ["ID", "--task", "x"]], ids=["nothing", "both"])
def test_either_ids_or_what_they_have_in_common(arguments):
    with pytest.raises(CommandError, match="Say which jobs to cancel"):
        call_command("jobs", "cancel", *arguments)


def test_since():
    now = timezone.now()
    for text, hours in (("90min", 1.5), ("2h", 2), ("1.5 d", 36), ("1w", 168)):
        assert abs((now - moment(text)).total_seconds() - hours * 3600) < 5
    assert moment("2026-11-21") == timezone.make_aware(datetime.datetime(2026, 11, 21))
    assert moment("2026-11-21 14:30") == timezone.make_aware(datetime.datetime(2026, 11, 21, 14, 30))
    for text in ("yesterday", "2026-13-01", "-2h", ""):
        with pytest.raises(ValueError, match="write 90min, 2h"):
            moment(text)
    with pytest.raises(CommandError, match="--since: 'soon' is no moment"):
        call_command("jobs", "retry", "--since", "soon")


def test_each_job_comes_once_although_it_leaves_the_selection():
    for _ in range(5):
        make("ready")
    found = []
    for job in Selection(states=["ready"]).jobs():
        Job.objects.filter(pk=job.pk).update(state="cancelled", finished_at=timezone.now())
        found.append(job.pk)
    assert len(found) == len(set(found)) == 5


def test_who_did_it_and_why_is_in_the_history():
    job, other = make("failed"), make("succeeded")
    with pytest.raises(CommandError):
        call_command("jobs", "retry", str(job.pk), str(other.pk), "--why", "the server is back", stdout=io.StringIO())
    call_command("jobs", "cancel", str(job.pk), stdout=io.StringIO())
    found = Action.objects.filter(job=job.pk).order_by("pk")
    assert [(each.what, each.by, each.why) for each in found] == [
        ("retry", me(), "the server is back"),
        ("cancel", me(), ""),
    ]
    assert me() in Job.objects.get(pk=job.pk).error["message"]
    assert not Action.objects.filter(job=other.pk).exists()


def test_the_history_goes_with_its_job():
    old = make("failed", age=40 * 86400)
    call_command("jobs", "retry", str(old.pk), stdout=io.StringIO())
    call_command("jobs", "cancel", str(old.pk), stdout=io.StringIO())
    kept = make("failed")
    call_command("jobs", "retry", str(kept.pk), stdout=io.StringIO())
    long_ago = timezone.now() - datetime.timedelta(days=39)
    Job.objects.filter(pk=old.pk).update(finished_at=long_ago)
    call_command("jobs", "prune", "--once", stdout=io.StringIO())
    assert [each.job for each in Action.objects.all()] == [kept.pk]


@pytest.mark.parametrize("verb", ["cancel", "retry", "delete", "list"])
def test_an_option_that_is_empty_does_not_mean_all(verb):
    jobs = [make(state) for state in ("ready", "failed", "cancelled")]
    for name in ("--task", "--queue", "--error", "--since"):
        with pytest.raises(CommandError, match=f"{name} is empty"):
            run(verb, name, " ")
    assert states(*jobs) == ["ready", "failed", "cancelled"]


def test_nobody_searches_arguments_that_are_redacted(settings):
    assert run("list", "--contains", "x") == "There is no such job.\n"
    settings.JOBS = {**settings.JOBS, "REDACT": "tests.helpers.redactions.hide_secrets"}
    with pytest.raises(CommandError, match="--contains: the arguments are redacted"):
        run("list", "--contains", "x")


def test_a_dry_run_says_what_will_be_refused(caplog):
    one = make("failed", unique_key="monday", unique_until="started")
    make("ready", unique_key="monday", unique_until="started")
    kept, gone = make("cancelled"), make("cancelled")
    Marker.objects.create(key="k", kind="task", job=kept.pk)
    for verb, state, done in (("retry", "failed", 0), ("delete", "cancelled", 1)):
        for more in (["--dry-run"], []):
            out = io.StringIO()
            with pytest.raises(CommandError):
                call_command("jobs", verb, "--state", state, "--json", *more, stdout=out)
            assert (json.loads(out.getvalue())["done"], len(json.loads(out.getvalue())["refused"])) == (done, 1)
    assert set(Job.objects.filter(state="cancelled")) == {kept}
    with caplog.at_level("INFO", logger="jobs"):
        run("delete", str(one.pk), "--reason", "gdpr")
    record = [record for record in caplog.records if getattr(record, "action", "") == "deleted"][-1]
    assert (record.job, record.why) == (str(one.pk), "gdpr")
    assert not Job.objects.filter(pk=gone.pk).exists()


def test_an_adopted_job_is_not_deleted_while_its_message_may_come_again():
    job = make("succeeded", made_at=timezone.now())
    out = io.StringIO()
    with pytest.raises(CommandError):
        call_command("jobs", "delete", str(job.pk), stdout=out)
    assert "another program's" in out.getvalue()
    Job.objects.filter(pk=job.pk).update(finished_at=timezone.now() - datetime.timedelta(days=2))
    run("delete", str(job.pk))
    assert not Job.objects.exists()


@pytest.mark.database
def test_arguments_and_results_are_asked_for_by_what_they_are():
    """They are stored as they were written, and compared as JSON."""
    job = make("failed", args=[1, "é"], kwargs={"a": 1, "b": {"c": None}}, result={"z": 1, "y": 1e16})
    other = make("succeeded", args=[], kwargs={"a": 2, "b": "1"}, result=[1])
    conditions = [{"args": [1, "é"]}, {"args__0": 1}, {"kwargs__a": 1}, {"kwargs__a__lt": 2}, {"kwargs__a__in": [1, 7]}]
    conditions += [{"kwargs": {"a": 1, "b": {"c": None}}}, {"kwargs__b__c": None}, {"error__type": "ValueError"}]
    conditions += [{"result": {"z": 1, "y": 1e16}}, {"result__z": 1}, {"result__has_key": "z"}]
    if connection.vendor == "postgresql":
        conditions += [{"kwargs": {"b": {"c": None}, "a": 1}}, {"args__contains": "é"}]
    for condition in conditions:
        assert list(Job.objects.filter(**condition)) == [job], condition
    assert not Job.objects.exclude(args=[1, "é"]).exclude(pk=other.pk).exists()
    assert Job.objects.values_list("kwargs__a", flat=True).get(pk=other.pk) == 2
    assert list(Job.objects.get(pk=job.pk).result) == ["z", "y"], "in the order in which they were written"


@pytest.mark.parametrize("is_foreign", [False, True])
def test_by_the_time_of_the_call(is_foreign):
    new, old = make(age=60), make(age=7200)
    expected = {new.pk}, {old.pk}
    if is_foreign:
        recent, ancient = (
            make(id=uuid.uuid4(), made_at=timezone.now() - datetime.timedelta(hours=hours)) for hours in (0, 5)
        )
        expected = {new.pk, recent.pk}, {old.pk, ancient.pk}
    hour_ago = moment("1h")
    assert {job.pk for job in Selection(values={"since": hour_ago}).jobs()} == expected[0]
    assert {job.pk for job in Selection(values={"until": hour_ago}).jobs()} == expected[1]


def test_a_retry_goes_where_the_row_says(node):
    result = tasks.retries.apply_async(("a",), {"times": 1}, queue="slow", priority=3)
    run("move", result.id, "--to", "fast")
    run("prioritize", result.id, "--to", "9")
    assert deliver(result)[0] == "RETRY"
    job = Job.objects.get()
    assert (job.retries, job.queue, job.priority) == (1, "fast", 9)


@pytest.mark.parametrize("text", ["0001-01-01", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_moment_at_the_edge_of_time_is_refused(text):
    with timezone.override("Europe/Berlin"), pytest.raises(ValueError, match="is no moment"):
        moment(text)
