"""``manage.py jobs audit``: what would change is said at its place, and what is fine is not."""

from __future__ import annotations

import ast
import json
import re
from types import SimpleNamespace

import pytest

from jobs.contrib.operator.project import init, source
from tests.helpers.project import Project

SETTINGS = """
INSTALLED_APPS += ["jobs", "accounts", "django_celery_beat"]
DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}
JOBS = {"TASKS": {"*.named_in_the_settings": {"atomic": False, "max_retries": 0}}}
CELERY_BROKER_URL = "memory://"
CELERY_TASK_TIME_LIMIT = 60
CELERY_WORKER_PREFETCH_MULTIPLIER = 8
CELERY_BEAT_SCHEDULE = {
    "fine": {"task": "accounts.tasks.fine", "schedule": 60, "args": (1,)},
    "nobody's": {"task": "accounts.tasks.gone", "schedule": 60},
    "passes a set": {"task": "accounts.tasks.fine", "schedule": 60, "args": ({1},)},
}
"""
CELERY = """
from celery import Celery

app = Celery("proj")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""
#: A line that ends with a comment is named with a text like it; all others are fine.
TASKS = """
import jobs
import requests
from celery import Task, shared_task
from django.contrib.auth.models import User
from django.core.mail import send_mail
from django.db import close_old_connections, connection, transaction

from accounts.reports import report


@shared_task(bind=True, autoretry_for=(OSError,), max_retries=3, queue="mail", ignore_result=True)
def fine(self, user_id, label: str = ""):
    user = User.objects.get(pk=user_id)
    user.save()
    pks = list(User.objects.values_list("pk", flat=True))
    fine.delay(user.pk, label=user.username)
    fine.apply_async(args=[pks], kwargs={"label": f"{user}"}, countdown=3)


@shared_task(base=jobs.Task, unique="summary:{day}")
def switched(day): ...


class Logging(Task):
    pass


@shared_task(base=Logging)  # differs: its base class Logging
def other(): ...


@shared_task(serializer="pickle")  # breaks: serializer='pickle'
def pickled(): ...


@shared_task(rate_limit="3/m")  # differs: rate_limit='3/m'
def limited(): ...


@shared_task
def durable():
    with transaction.atomic(durable=True):  # breaks: durable=True
        pass


def apart():
    with transaction.atomic(durable="tests" not in User.__name__):
        pass


class Cart:
    def commit(self):
        self.write()

    @transaction.atomic(durable=True)
    def write(self): ...


def commits_apart():
    apart()


@shared_task
def durable_elsewhere():
    commits_apart()  # breaks: commits_apart() opens atomic(durable=True)
    report()  # breaks: report() opens atomic(durable=True)
    cart = Cart()
    cart.commit()  # breaks: cart.commit() opens atomic(durable=True)
    User().commit()


@shared_task(base=jobs.Task, atomic=False)
def durable_by_itself():
    with transaction.atomic(durable=True):
        commits_apart()
    close_old_connections()


@shared_task(base=jobs.Task, durable=True)
def of_several_days():
    with transaction.atomic(durable=False):
        pass


@shared_task(acks_late=True)  # needless: acks_late means nothing
def late(): ...


@shared_task(max_retry=3)  # breaks: did you mean `max_retries`
def misspelt(): ...


@shared_task
def body():
    connection.close()  # breaks: connection.close()
    close_old_connections()  # breaks: close_old_connections()
    transaction.on_commit(lambda: print("sent"))  # differs: on_commit() in a body
    transaction.on_commit(lambda: fine.delay(1))  # needless: on_commit() around a call


def notify(user):
    send_mail("Hello", "", None, [user.email])


@shared_task
def claims(pk):
    with transaction.atomic():  # differs: not before send_mail() in line
        user = User.objects.select_for_update().get(pk=pk)
        if user.is_staff:
            return
        user.is_staff = True
        user.save(update_fields=["is_staff"])
    send_mail("Hello", "", None, [user.email])


@shared_task
def claims_and_calls(pk):
    try:
        with transaction.atomic():  # differs: not before notify() in line
            User.objects.filter(pk=pk).update(is_staff=True)
        user = User.objects.get(pk=pk)
    finally:
        notify(user)


@shared_task(base=jobs.Task, atomic=False)
def commits_itself(pk):
    with transaction.atomic():
        User.objects.filter(pk=pk).update(is_staff=True)
    send_mail("Hello", "", None, [])


@shared_task
def named_in_the_settings(pk):
    with transaction.atomic():
        User.objects.filter(pk=pk).update(is_staff=True)
    requests.post("https://example.com", timeout=3)


@shared_task
def sends_before_it_writes(pk):
    requests.get("https://example.com", timeout=3)
    with transaction.atomic():
        User.objects.filter(pk=pk).update(is_staff=True)


@shared_task
def does_one_or_the_other(pk):
    if pk:
        with transaction.atomic():
            User.objects.filter(pk=pk).update(is_staff=True)
    else:
        notify(pk)


@shared_task
def ends_before(pk):
    if pk:
        with transaction.atomic():
            User.objects.filter(pk=pk).update(is_staff=True)
        return
    notify(pk)


@shared_task
def reads_only(pk):
    with transaction.atomic():
        user = User.objects.select_for_update().get(pk=pk)
        {}.update(a=1)
    notify(user)


@shared_task(bind=True)
def tells_of_its_retry(self, pk):
    try:
        user = User.objects.get(pk=pk)
    except OSError as exc:
        user.first_name = "failed"
        user.save()
        raise self.retry(exc=exc)  # differs: saved before self.retry()


@shared_task(bind=True)
def tries_again(self, pk):
    User.objects.filter(pk=pk).update(first_name="tried")
    try:
        requests.get("https://example.com", timeout=3)
    except OSError as exc:
        raise self.retry(exc=exc)


class Aware(jobs.Task):
    def apply_async(self, *args, **kwargs):  # needless: apply_async() waits for the commit
        transaction.on_commit(lambda: super(Aware, self).apply_async(*args, **kwargs))


@shared_task(base=Aware)
def with_a_base(user: User): ...


@shared_task
def taker(number: int, user: "User | None"):  # breaks: takes a model instance
    fine.delay(user)  # breaks: gets user, a model instance


@shared_task
def own_connection(mails):
    connection = get_connection()
    connection.close()


@shared_task
def optional(number: int, user: User | None = None, *, other: User | None = None): ...


@shared_task
def number_or_row(user: int | User): ...


@shared_task
def by_keyword(number: int = 1, *, other: int = 1, user: User): ...  # breaks: takes a model instance


def is_declared_long(app):
    with app.connection_or_acquire() as conn:
        channel = conn.default_channel
        return channel.queue_declare(queue="celery").message_count > 100  # differs: the length of a broker's list
"""
REPORTS = """
from django.db import transaction


def report():
    with transaction.atomic(durable=True):
        pass
"""
VIEWS = """
from functools import partial

from celery import chain
from celery.result import AsyncResult
from django.contrib.auth import models
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models.signals import post_save
from django.shortcuts import get_object_or_404

from accounts.tasks import fine


def sign_up(request, other: models.User):
    user, is_new = User.objects.get_or_create(username="ann")
    fine.delay(user)  # breaks: gets user, a model instance
    fine.delay(is_new)
    fine.apply_async([other])  # breaks: gets other, a model instance
    fine.apply_async(kwargs={"label": request.user})  # breaks: gets request.user
    fine.delay(User.objects.filter(is_active=True))  # breaks: a queryset
    fine.delay({1, 2})  # breaks: a set
    fine.si(get_object_or_404(User, pk=1))  # breaks: a model instance
    user = user.pk
    fine.delay(user)
    for each in User.objects.order_by("pk"):
        fine.delay(each)  # breaks: gets each, a model instance
    for each in User.objects.values_list("pk", flat=True):
        fine.delay(each)
    transaction.on_commit(partial(fine.delay, 1))  # needless: on_commit() around a call
    fine.apply_async((1,), serializer="pickle")  # breaks: serializer='pickle'
    fine.apply_async((1,), task_id=f"once-{user}")  # breaks: no UUID
    fine.apply_async((1,), count_down=3)  # breaks: did you mean `countdown`
    transaction.on_commit(chain(fine.si(1), fine.si(2)).apply_async)  # needless: on_commit() around a call


def is_busy(client, key):
    return client.llen(key) + client.llen("orders")


def is_long(client):
    return client.llen("celery") > 100  # differs: the length of a broker's list


def asked(request, key):
    return AsyncResult(key).ready()  # differs: code asks for a result


async def later(request):
    user = await User.objects.aget(pk=1)
    await fine.adelay(user)  # breaks: gets user, a model instance


def saved(sender, instance, **kwargs):
    fine.delay(instance)  # breaks: gets instance, a model instance


post_save.connect(saved, User)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_changes_is_named_at_its_place_and_nothing_else(tmp_path):
    project = Project(tmp_path)
    with (tmp_path / "proj" / "settings.py").open("a") as file:
        file.write(SETTINGS)
    (tmp_path / "proj" / "__init__.py").write_text("from proj.celery import app\n")
    (tmp_path / "proj" / "celery.py").write_text(CELERY)
    (tmp_path / "django_celery_beat").mkdir()
    (tmp_path / "django_celery_beat" / "__init__.py").touch()
    (tmp_path / "requests.py").touch()
    (tmp_path / "accounts" / "tasks.py").write_text(TASKS)
    (tmp_path / "accounts" / "reports.py").write_text(REPORTS)
    (tmp_path / "accounts" / "views.py").write_text(VIEWS)
    said = json.loads(project.manage("jobs", "audit", "--json"))
    expected, found = {}, {}
    for name, text in (("tasks", TASKS), ("views", VIEWS)):
        for number, line in enumerate(text.splitlines(), 1):
            if comment := re.search(r"# (\w+): (.*)", line):
                expected[f"accounts/{name}.py:{number}"] = comment.groups()
    elsewhere = []
    for each in said["findings"]:
        place = each["where"].partition(" ")[0]
        if place.startswith("accounts/"):
            assert place not in found, "once"
            found[place] = each
        else:
            elsewhere.append((each["where"], each["kind"], each["says"]))
    assert found.keys() == expected.keys()
    for place, (kind, text) in expected.items():
        assert found[place]["kind"] == kind, found[place]
        assert text in found[place]["says"]
        assert found[place]["cure"]
    assert [(where, kind) for where, kind, _ in elsewhere] == [
        ("settings (jobs.W008)", "differs"),
        ("settings (jobs.W019)", "needless"),
        ("django_celery_beat", "differs"),
        ('beat_schedule["nobody\'s"]', "differs"),
        ("beat_schedule['passes a set']", "breaks"),
    ]

    text = project.manage("jobs", "audit")
    assert "Not seen:" in text
    with pytest.raises(AssertionError, match="findings break"):
        project.manage("jobs", "audit", "--strict")


@pytest.mark.parametrize("how", ["a lock of an editor", "a folder", "too long"])
def test_what_is_no_program_is_left_out(tmp_path, monkeypatch, how):
    if how == "a folder":
        (tmp_path / "x.py").mkdir()
    elif how == "too long":
        (tmp_path / "x.py").write_text("x = " + "+".join(["1"] * 20_000))
    else:
        (tmp_path / ".#x.py").symlink_to("me@host.1:2")
    monkeypatch.setattr(source.apps, "get_app_configs", lambda: [SimpleNamespace(path=str(tmp_path))])
    found = [path for path in source.files() if path.is_relative_to(tmp_path)]
    # Newer releases of Python can read a long one.
    assert len([source._parsed(path.read_bytes()) for path in found]) == (how == "too long")


APPS = {
    "form feeds": ('import celery\n\f\n# Part\n\f\napp = celery.Celery("proj")\n', ', task_cls="jobs.task:Task")'),
    "parentheses": ('app = Celery(\n    ("proj"),\n)\n', None),
    "ends of lines": ('import celery\r\napp = celery.Celery("proj")\r\n', ', task_cls="jobs.task:Task")\r\n'),
    "a mark": ('\ufeffapp = Celery("proj")\n', ', task_cls="jobs.task:Task")'),
}


@pytest.mark.parametrize("how", APPS)
def test_init_leaves_a_program_as_it_is_or_says_what_to_write(tmp_path, how):
    text, given = APPS[how]
    path = tmp_path / "celery.py"
    path.write_bytes(text.encode())
    call = ast.parse(path.read_bytes()).body[-1].value
    plan = init.Plan()
    init._give_class(plan, init.Made(path, "proj.celery", "app", call))
    made = plan.text(path)
    ast.parse(made.removeprefix("\ufeff"))
    assert (given or text) in made
    assert len(plan.notes) == (given is None)
    plan.append(path, "x = 1\n")
    assert plan.text(path).endswith("\r\nx = 1\r\n" if "\r" in text else "\n\nx = 1\n")
