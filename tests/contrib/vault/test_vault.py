"""``JOBS["ENCRYPT"]``: nobody reads these arguments in the database."""

import datetime
import io
import json
import uuid

import pytest
from asgiref.sync import sync_to_async
from celery import chain
from celery.app.task import Context
from django.contrib.auth.models import Permission, User
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection

from jobs.calling import calls
from jobs.conf import problems
from jobs.lifecycle.shown import shown
from jobs.models import Job
from jobs.testing import run_jobs
from tests.models import Effect

Fernet = pytest.importorskip("cryptography.fernet").Fernet

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))
SECRET = "DE02-s3cret"
seen: list = []


@pytest.fixture(autouse=True)
def encrypting(settings):
    seen.clear()
    settings.JOBS = {**settings.JOBS, "ENCRYPT": {"t.all": True, "t.part*": ["iban"]}, "ENCRYPT_KEYS": [OLD]}


def turn(settings, *keys):
    settings.JOBS = {**settings.JOBS, "ENCRYPT_KEYS": list(keys)}


def body(iban, amount=0, at=None):
    seen.append((iban, amount, at))
    return "done"


def stored():
    """All that the table of jobs has, as texts."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM jobs_job")
        return str(cursor.fetchall())


def test_the_row_has_a_token_and_the_body_its_arguments(declare):
    day = datetime.date(2026, 11, 26)
    declare(name="t.all", body=body).delay(SECRET, amount=5, at=day)
    assert SECRET not in stored()
    assert "2026-11-26" not in str(Job.objects.get().kwargs)
    run_jobs()
    assert seen == [(SECRET, 5, day)]
    assert SECRET not in stored()


def test_only_the_arguments_that_are_named(declare):
    task = declare(name="t.part", body=body)
    task.delay(SECRET, 5)
    task.delay(amount=6, iban=SECRET)
    assert SECRET not in stored()
    assert [job.args[1:] or job.kwargs["amount"] for job in Job.objects.order_by("pk")] == [[5], 6]
    run_jobs()
    assert seen == [(SECRET, 5, None), (SECRET, 6, None)]


def test_other_tasks_are_as_they_were(declare):
    declare(name="u.all", body=body).delay(SECRET)
    assert SECRET in stored()


def test_what_follows_a_call_is_encrypted_with_it(declare):
    first, second = declare(name="u.first"), declare(name="t.all", body=body)
    chain(first.si(), second.si(SECRET)).apply_async(link=second.si(SECRET, 2))
    assert SECRET not in stored()
    run_jobs()
    assert SECRET not in stored()
    assert {each[0] for each in seen} == {SECRET}


def test_a_retry_is_encrypted_again(declare):
    def again(self, iban):
        seen.append(iban)
        if not self.request.retries:
            self.request.kwargs["iban"] = iban + "2"
            raise self.retry(countdown=0)

    declare(name="t.all", body=again, bind=True).delay(iban=SECRET)
    run_jobs()
    assert seen == [SECRET, SECRET + "2"]
    assert SECRET not in stored()


def test_many_calls_and_keys_and_tags_of_them(declare):
    task = declare(name="t.part", body=body, tags={"of": "{iban}"}, fair_key="{iban}", lock="{iban}")
    task.delay_many([("a-secret",), ("b-secret",)])
    assert [job.tags["of"] for job in Job.objects.order_by("pk")] == ["a-secret", "b-secret"], "keys are made before"
    assert [job.fair_key for job in Job.objects.order_by("pk")] == ["a-secret", "b-secret"]
    run_jobs()
    assert sorted(each[0] for each in seen) == ["a-secret", "b-secret"]


def test_markers_know_the_same_call_again(declare):
    task = declare(name="t.all", body=body, idempotency_key="once:{amount}")
    for _ in range(2):
        task.delay(SECRET, 5)
    run_jobs()
    assert len(seen) == 1


def test_an_async_body_has_its_arguments(declare):
    async def later(iban):
        await sync_to_async(Effect.objects.create)(key=iban, pid=1)

    declare(name="t.all", body=later).delay(SECRET)
    run_jobs()
    assert Effect.objects.get().key == SECRET


def test_an_async_body_may_be_tried_again(declare):
    """A retry is made of what its request has."""

    async def later(self, iban):
        if not self.request.retries:
            raise self.retry(countdown=0)
        await sync_to_async(Effect.objects.create)(key=iban, pid=1)

    declare(name="t.all", body=later, bind=True).delay(SECRET)
    run_jobs()
    assert Effect.objects.get().key == SECRET


def test_a_text_that_has_the_value_is_blanked_where_both_are_set(declare, settings):
    settings.JOBS = {**settings.JOBS, "REDACT": "tests.helpers.redactions.nothing"}
    declare(name="t.all", body=body).delay(SECRET, 1234567)
    job = Job.objects.get()
    text = shown(job).text("error", f"{SECRET} is no IBAN, of 1234567")
    assert SECRET not in text
    assert "1234567" not in text
    turn(settings, NEW)
    assert SECRET not in shown(job).text("error", f"{SECRET} is no IBAN"), (
        "without the key it is not known what to hide"
    )


def test_a_message_by_name_is_kept_encrypted_or_not_at_all(declare, settings):
    """Also where another extension cannot make anything of the arguments."""
    task = declare(name="t.all", body=body)
    task.__class__.call_hooks = (lambda *given: 1 / 0, *task.call_hooks)
    request = Context(id=str(uuid.uuid4()), delivery_info={})
    calls.receive("t.all", request, [SECRET], {})
    assert Job.objects.get().task == "t.all"
    assert SECRET not in stored()
    turn(settings)
    with pytest.raises(ImproperlyConfigured):
        calls.receive("t.all", Context(id=str(uuid.uuid4()), delivery_info={}), [SECRET], {})
    assert Job.objects.count() == 1


def test_people_see_that_it_is_encrypted_and_who_may_its_value(declare, client, admin_client):
    key = declare(name="t.part", body=body).delay(SECRET, 5).id
    out = io.StringIO()
    call_command("jobs", "show", key, stdout=out)
    call_command("jobs", "list", "--json", stdout=out)
    assert "(encrypted)" in out.getvalue()
    assert SECRET not in out.getvalue()
    looker = User.objects.create_user("looker", is_staff=True)
    looker.user_permissions.add(Permission.objects.get(codename="view_job"))
    client.force_login(looker)
    text = client.get(f"/admin/jobs/job/{key}/change/").content.decode()
    assert "(encrypted)" in text
    assert SECRET not in text
    assert SECRET not in client.get("/admin/jobs/job/").content.decode()
    looker.user_permissions.add(Permission.objects.get(codename="decrypt_job"))
    text = client.get(f"/admin/jobs/job/{key}/change/").content.decode()
    assert SECRET in text
    assert "Decrypted arguments" in text


def test_outside_of_a_run_no_job_carries_on_what_cannot_be_read(declare):
    task = declare(name="t.all", body=body)
    args = task.AsyncResult(task.delay(SECRET).id).args
    assert args == ["(encrypted)"]
    with pytest.raises(TypeError):
        task.delay(*args)


def test_keys_rotate(declare, settings, capsys):
    task = declare(name="t.all", body=body)
    task.delay(SECRET)
    before = Job.objects.get().args
    turn(settings, NEW, OLD)
    task.delay(SECRET, 2)
    call_command("jobs", "encrypt", "--new-key")
    assert Fernet(capsys.readouterr().out.strip())
    call_command("jobs", "encrypt", "--dry-run", "--json")
    assert json.loads(capsys.readouterr().out) == {"dry_run": True, "changed": 1, "unreadable": 0}
    assert Job.objects.earliest("pk").args == before
    call_command("jobs", "encrypt")
    call_command("jobs", "encrypt", "--json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["changed"] == 0
    turn(settings, NEW)
    run_jobs()
    assert seen == [(SECRET, 0, None), (SECRET, 2, None)]


def test_what_was_called_before_is_encrypted_by_the_command(declare, settings):
    declare(name="u.all", body=body).delay(SECRET)
    settings.JOBS = {**settings.JOBS, "ENCRYPT": {"u.*": True}}
    call_command("jobs", "encrypt")
    assert SECRET not in stored()
    run_jobs()
    assert seen == [(SECRET, 0, None)]


def test_without_its_key_the_job_fails_and_says_so(declare, settings):
    declare(name="t.all", body=body, autoretry_for=()).delay(SECRET)
    turn(settings, NEW)
    with pytest.raises(CommandError, match="not in JOBS"):
        call_command("jobs", "encrypt")
    run_jobs(raises=False)
    job = Job.objects.get()
    assert (job.state, job.error["type"]) == ("failed", "CannotDecrypt")
    assert seen == []
    turn(settings, NEW, OLD)
    call_command("jobs", "retry", str(job.pk))
    run_jobs()
    assert seen == [(SECRET, 0, None)]


def test_what_cannot_work_is_told(declare, settings):
    task = declare(name="t.all", body=body)
    turn(settings)
    with pytest.raises(ImproperlyConfigured, match="keys of cryptography's Fernet"):
        task.delay(SECRET)
    assert not Job.objects.exists()
    assert "jobs.E024" in [each.id for each in run_checks(tags=["jobs"])]
    settings.JOBS = {**settings.JOBS, "ENCRYPT": {"t.*": "iban"}}
    assert "must be a dict of True or lists of names" in problems()[0]
