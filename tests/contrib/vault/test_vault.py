"""``JOBS["ENCRYPT"]``: nobody reads these arguments in the database."""

import datetime
import io
import json
import sys
import uuid
from contextlib import contextmanager
from types import ModuleType

import pytest
from asgiref.sync import sync_to_async
from celery import chain, chord, current_app
from celery.app.task import Context
from celery.signals import task_prerun
from django.contrib.auth.models import Permission, User
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from jobs import Task
from jobs.conf import problems, sentry
from jobs.contrib.aio import sentry as scopes
from jobs.contrib.grouped.runner import GroupingRunner
from jobs.contrib.inspection.view import look_up
from jobs.contrib.messages import receiving
from jobs.contrib.operator import problems as operator_problems
from jobs.contrib.operator import status
from jobs.contrib.redaction.display import shown
from jobs.contrib.stock_calls.sending import calls_are_rows
from jobs.contrib.vault import commands, seal
from jobs.contrib.vault.tokens import encrypt, revealed
from jobs.extensions import through
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job
from jobs.models.values import decoded, jsonable
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


def problems_of_keys():
    return [each for each in operator_problems.of(status.gather(live=True)) if each.kind == "no_key"]


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


def gets_a_result(result, iban, amount=0):
    seen.append((iban, amount))


def is_told(request, exc, traceback, iban):
    seen.append((iban, 5))


def raises():
    raise ValueError


@pytest.mark.parametrize("how", ["link", "chain", "chord", "header", "errback"])
def test_what_gets_others_before_its_arguments_is_encrypted_by_their_names(declare, how):
    first, fails = declare(name="u.first"), declare(name="u.fails", body=raises)
    second, told = declare(name="t.part_of", body=gets_a_result), declare(name="t.part_told", body=is_told)
    {
        "link": lambda: first.apply_async(link=second.s(SECRET, 5)),
        "chain": lambda: chain(first.si(), second.s(SECRET, 5)).apply_async(),
        "chord": lambda: chord([first.si()], second.s(SECRET, 5)).apply_async(),
        "header": lambda: chain(first.si(), chord([second.s(SECRET, 5)], first.si())).apply_async(),
        "errback": lambda: fails.apply_async(link_error=told.s(SECRET)),
    }[how]()
    assert SECRET not in stored()
    run_jobs(raises=False)
    assert seen == [(SECRET, 5)]
    assert SECRET not in stored()
    # In a row of its own each argument has its name.
    assert [job.args[2:] for job in Job.objects.filter(task=second.name)] == [[5]] * (how != "errback")


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
    receiving.insert("t.all", request, [SECRET], {})
    assert Job.objects.get().task == "t.all"
    assert SECRET not in stored()
    turn(settings)
    with pytest.raises(ImproperlyConfigured):
        receiving.insert("t.all", Context(id=str(uuid.uuid4()), delivery_info={}), [SECRET], {})
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


@pytest.mark.parametrize("keys", [(NEW,), ()])
@pytest.mark.parametrize("is_async", [False, True])
def test_without_its_key_the_job_waits_for_a_worker_that_has_it(declare, settings, capsys, keys, is_async):
    """In a rolling deploy some workers have the new key, and others do not have it yet."""

    async def later(iban):
        seen.append((iban, 0, None))

    key = declare(name="t.all", body=later if is_async else body, max_retries=0).delay(SECRET).id
    turn(settings, *keys)
    with pytest.raises((CommandError, ImproperlyConfigured)):
        call_command("jobs", "encrypt")
    for _ in range(2):
        run_jobs(until=timezone.now() + datetime.timedelta(minutes=1), limit=1)
    job = Job.objects.get()
    assert (job.state, job.error["type"], job.lease) == ("scheduled", "CannotDecrypt", 2)
    assert (job.retries, job.snoozes, job.crashes, job.node_losses) == (0, 0, 0, 0)
    assert seen == []
    capsys.readouterr()
    call_command("jobs", "why", key)
    assert "Give all workers the key" in capsys.readouterr().out
    [problem] = problems_of_keys()
    assert (problem.number, problem.severity, "ENCRYPT_KEYS" in problem.meaning) == (1, "error", True)
    turn(settings, NEW, OLD)
    run_jobs(until=timezone.now() + datetime.timedelta(minutes=5))
    assert seen == [(SECRET, 0, None)]
    assert problems_of_keys() == []


def test_a_body_that_cannot_read_another_job_fails_and_is_not_left_to_others(declare, settings):
    """It has begun, and would begin again and again."""
    hidden = declare(name="t.all", body=body).apply_async([SECRET], countdown=3600).id
    turn(settings, NEW)

    def reads(pk):
        decoded(Job.objects.get(pk=pk).args)

    job = declare(name="u.reads", body=reads, max_retries=0).delay(hidden)
    run_jobs(raises=False)
    assert [Job.objects.get(pk=job.id).state, Job.objects.get(pk=job.id).error["type"]] == ["failed", "RuntimeError"]


def test_what_comes_before_the_body_has_its_arguments(declare):
    """Celery's signal, and the task's own ``before_start``. What is told to people has not."""
    met = []

    class Noting(Task):
        def before_start(self, task_id, args, kwargs):
            met.append((args[0], kwargs["amount"], self.request.args[0]))

    def receive(args, kwargs, task, **more):
        met.append((args[0], kwargs["amount"], task.request.argsrepr))

    task_prerun.connect(receive)
    try:
        declare(name="t.all", body=body, base=Noting).delay(SECRET, amount=5)
        run_jobs()
    finally:
        task_prerun.disconnect(receive)
    assert met == [(SECRET, 5, "('(encrypted)',)"), (SECRET, 5, SECRET)]


def test_sentry_is_told_no_argument(declare, monkeypatch):
    told = []

    def around(step, task, call):
        return lambda *given: told.append(given[1:3]) or call(*given)

    monkeypatch.setitem(sys.modules, sentry.MODULE, ModuleType("celery"))
    monkeypatch.setattr(sentry, "around", around)
    declare(name="t.all", body=body).delay(SECRET, amount=5)
    run_jobs()
    assert told[0] == (["(encrypted)"], {"amount": "(encrypted)"})
    assert seen == [(SECRET, 5, None)]


def test_sentry_is_told_no_argument_of_a_group_either(declare, monkeypatch, node):
    told = []

    @contextmanager
    def around(run):
        told.append(decoded(run.job.args))
        yield

    monkeypatch.setitem(sys.modules, sentry.MODULE, ModuleType("celery"))
    monkeypatch.setattr(scopes, "around", around)
    monkeypatch.setattr("jobs.worker.runner.BATCH_TIME", 100.0)
    monkeypatch.setattr("jobs.contrib.grouped.runner.GROUP_TIME", 60.0)
    worker_state.queues = [current_app.conf.task_default_queue]
    runner = GroupingRunner(current_app._get_current_object(), "here")
    runner._means, runner._next = {"t.all": 0.001}, 100
    try:
        for _ in range(2):
            declare(name="t.all", body=body, grouped=True).delay(SECRET)
        assert runner.run_batch()
    finally:
        runner.slot.free()
    assert [str(each) for [each] in told] == ["(encrypted)"] * 2
    assert seen == [(SECRET, 0, None)] * 2


def test_jobs_of_unknown_keys_come_back_ever_less_often(declare, settings):
    """There may be very many, for long."""
    declare(name="t.all", body=body).delay(SECRET)
    Job.objects.update(lease=30)
    turn(settings, NEW)
    run_jobs(limit=1)
    wait = (Job.objects.get().run_at - timezone.now()).total_seconds()
    assert 290 < wait <= 600


def test_inspect_active_shows_that_it_is_encrypted(declare):
    shows = []

    def look(self, iban, at=None):
        shows.append(str(worker_state.text(worker_state.at_work()[0])))

    task = declare(name="t.all", body=look, bind=True)
    task.delay(SECRET, at=datetime.date(2026, 11, 26))
    run_jobs()
    assert "(encrypted)" in shows[0]
    assert SECRET not in shows[0]
    assert "__type__" not in shows[0]


def test_a_message_of_a_task_that_is_not_known_is_encrypted_until_it_is_sent(declare, monkeypatch):
    """Inside of a transaction it waits in a job's row."""
    app = current_app._get_current_object()
    # It was declared before these settings.
    sender = type(app.tasks["jobs.send"])
    monkeypatch.setattr(sender, "call_hooks", tuple(each(sender) for each in through("called") if each(sender)))
    link = app.signature("t.partly", (SECRET,))
    with calls_are_rows("default"):
        app.send_task("t.partner", (SECRET,), {"iban": SECRET, "amount": 5})
        app.send_task("u.partner", ("plain",), link=[link])
    assert SECRET not in stored()
    rows = Job.objects.filter(task="jobs.send").order_by("pk")
    assert rows[0].args[2]["amount"] == 5
    assert rows[1].args[1] == ["plain"]
    with revealed():
        assert decoded(rows[0].args)[1:3] == [[SECRET], {"iban": SECRET, "amount": 5}]
    call_command("jobs", "encrypt")
    assert rows.all()[0].args == rows[0].args


def test_keys_of_what_follows_a_call_rotate_with_it(declare, settings):
    first, second = declare(name="u.first"), declare(name="t.all", body=body)
    links = {"link": second.si(SECRET, 2), "link_error": second.si(SECRET, 3)}
    (first.si() | second.si(SECRET)).apply_async(**links)
    chord([first.si()], second.si(SECRET, 4)).apply_async()
    before = stored()
    turn(settings, NEW, OLD)
    call_command("jobs", "encrypt")
    assert stored() != before
    turn(settings, NEW)
    run_jobs()
    assert sorted(each[:2] for each in seen) == [(SECRET, 0), (SECRET, 2), (SECRET, 4)]


def test_what_follows_a_call_is_encrypted_by_the_command(declare, settings):
    first, second = declare(name="u.first"), declare(name="u.all", body=body)
    first.apply_async(link=second.si(SECRET))
    settings.JOBS = {**settings.JOBS, "ENCRYPT": {"u.all": True}}
    call_command("jobs", "encrypt")
    assert SECRET not in stored()


def test_a_lock_that_is_made_of_what_nobody_may_read_is_not_shown(declare):
    """Before, it was that of the text that stands for the argument: of another lock, or of nobody's."""
    hidden = declare(name="t.all", body=body, lock="pay:{iban}").delay(SECRET)
    callable_ = declare(name="t.all2", body=body, lock=lambda iban: f"pay:{iban}")
    known = declare(name="t.part", body=body, lock="pay:{amount}").delay(SECRET, 5)
    assert look_up(uuid.UUID(hidden.id)).lock is None
    assert look_up(uuid.UUID(known.id)).lock == ("pay:5", None)
    with pytest.raises(ValueError, match="cannot be read"):
        callable_.key_templates["lock"].of(*[Job.objects.get(pk=hidden.id).args, {}])


def test_which_arguments_are_encrypted_is_asked_once_of_each_task(declare, monkeypatch):
    asked = []
    monkeypatch.setattr(seal, "fnmatchcase", lambda name, pattern: asked.append(name) or name == pattern)
    task = declare(name="t.all", body=body)
    task.delay_many([(f"{n}",) for n in range(20)])
    assert len(asked) == 2


def test_what_cannot_work_is_told(declare, settings):
    task = declare(name="t.all", body=body)
    turn(settings)
    with pytest.raises(ImproperlyConfigured, match="keys of cryptography's Fernet"):
        task.delay(SECRET)
    assert not Job.objects.exists()
    assert "jobs.E024" in [each.id for each in run_checks(tags=["jobs"])]
    settings.JOBS = {**settings.JOBS, "ENCRYPT": {"t.*": "iban"}}
    assert "must be a dict of True or lists of names" in problems()[0]


@pytest.mark.parametrize("name", ["t.all", "t.other"])
def test_a_callers_json_does_not_pass_for_a_token(declare, name):
    task, token = declare(name=name, body=body), encrypt(SECRET)
    for posing in (token, {**token, "__value__": "clear text"}, {**token, "__value__": 5}):
        with pytest.raises(ValueError, match="poses as an encrypted value"):
            task.delay({"comment": [posing]})
    with pytest.raises(ValueError, match="poses as an encrypted value"):
        jsonable({"signal": token}, "the payload")
    assert not Job.objects.exists()


def test_a_job_that_moves_meanwhile_does_not_keep_its_old_key(declare, settings, monkeypatch):
    """Between the look at a job and the write a worker claims it, or gives it back."""
    declare(name="t.all", body=body).delay(SECRET)
    turn(settings, NEW, OLD)
    sealed, claims = commands.sealed, [1]

    def claimed_meanwhile(*args):
        if claims:
            Job.objects.update(lease=claims.pop())
        return sealed(*args)

    monkeypatch.setattr(commands, "sealed", claimed_meanwhile)
    call_command("jobs", "encrypt")
    turn(settings, NEW)
    run_jobs()
    assert seen == [(SECRET, 0, None)]
