"""Every example of the documentation runs: each line of its Python, its settings through the checks, its commands.

The README, the tutorial and the page about tests are run as a reader would, in projects and test files of their own.
The examples of all other pages run here, in the example project. Code that no test reaches is an error.
"""

from __future__ import annotations

import configparser
import contextlib
import importlib
import io
import json
import os
import re
import shlex
import sys
import threading
import types
import urllib.error
from collections.abc import Callable, Iterator
from datetime import timedelta
from email.message import Message
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import celery
import click
import django
import pytest
import yaml
from celery.bin.celery import celery as celery_command
from django.conf import settings
from django.contrib.auth.models import User
from django.core import checks, mail
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.db import connection, connections
from django.template import engines
from django.test import RequestFactory, override_settings
from django.utils import timezone
from kombu.utils.uuid import uuid

from jobs import extensions, signals
from jobs.conf import problems
from jobs.contrib.crashtest.child import Children
from jobs.events.models import Event
from jobs.management.commands.jobs import Command
from jobs.models import Batch, Effect, Job
from jobs.testing import run_jobs
from shop.models import Customer, CustomerFile, Import, Order
from shop.tasks import charge_order
from tests.helpers.harness import ROOT

PAGES = [*sorted({*ROOT.glob("*.md")} - {ROOT / "CHANGELOG.md"}), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.M | re.S)

#: Tests that run the Python of a page as a reader would.
ELSEWHERE = {
    "README.md": "test_docs.py",
    "docs/tutorial.md": "test_docs.py",
    "docs/howto/test.md": "test_testing.py",
}

#: What stands in pages and cannot be run here, and why.
NOT_RUN = {
    "text": "a picture, or what a command prints",
    "ini": "for systemd and supervisor: it is parsed",
    "yaml": "for Kubernetes: it is parsed",
    "dockerfile": "for Docker",
}
#: Commands that are not ours, and not Celery's.
NOT_OURS = {"cd", "curl", "docker", "patch", "rabbitmqctl", ".", "ruff", "mypy"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fences(page: Path, language: str) -> list[str]:
    return [text for _, kind, text in FENCE.findall(page.read_text()) if kind == language]


# Python


class Examples:
    """The Python of a page, in its order. Each stands for itself: what it needs, it imports."""

    def __init__(self, page: Path) -> None:
        self.page, self.sources, self.ran = page, fences(page, "python"), set()
        self.left = list(enumerate(self.sources))
        self.expected: dict[tuple[str, int], str] = {}

    def run(self, **given: object) -> types.SimpleNamespace:
        """Run the next one, as a module of the name that it gives itself; returns what it defines."""
        number, source = self.left.pop(0)
        named = re.match(r"# (\S+)\.py", source)
        module = types.ModuleType(named[1].replace("/", ".") if named else f"example_{number}")
        vars(module).update(given)
        if named:
            sys.modules[module.__name__] = module
        filename = f"{self.page.name}, example {number + 1}"
        code = compile(source, filename, "exec")
        text = source.splitlines()
        self.expected |= {(filename, line): text[line - 1] for line in lines_of(code)}
        exec(code, vars(module))
        return types.SimpleNamespace(**vars(module))

    def run_settings(self, **given: object) -> None:
        """Run the next one, at the end of this project's settings, and look whether the checks agree."""
        before = {str(each) for each in checks.run_checks(tags=["jobs"])}
        found = vars(self.run(INSTALLED_APPS=[], DATABASES={"default": {}}, **given))
        if (apps := found.pop("INSTALLED_APPS")) != []:
            assert {*apps} <= {config.name for config in extensions.app_configs()}
        if (options := found.pop("DATABASES")["default"].get("OPTIONS")) and connection.vendor == "sqlite":
            connections.settings["default"]["OPTIONS"] = options
        override_settings(**{name: value for name, value in found.items() if name.isupper()}).enable()
        settings_of_celery = {name[7:].lower(): found[name] for name in found if name.startswith("CELERY_")}
        celery.current_app.conf.update(settings_of_celery)
        # The tasks of a schedule are in a later example, and those of other products are not installed.
        after = {str(each) for each in checks.run_checks(tags=["jobs"]) if each.id not in ("jobs.W024", "jobs.W034")}
        assert after <= before

    def trace(self, frame: types.FrameType, event: str, arg: object) -> Callable | None:
        if not frame.f_code.co_filename.startswith(self.page.name):
            return None
        self.ran.add((frame.f_code.co_filename, frame.f_lineno))
        return self.trace


def lines_of(code: types.CodeType) -> Iterator[int]:
    yield from (line for *_, line in code.co_lines() if line)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from lines_of(inner)


#: What has to be called so that each line of a page's examples runs; a page that is not here has none that must be.
READERS: dict[str, Callable[[Examples], None]] = {}


def reads(page: str) -> Callable:
    return lambda reader: READERS.setdefault(page, reader)


@reads("docs/howto/agents.md")
def agents(examples: Examples) -> None:
    examples.run()
    examples.run().InvoiceTest("test_an_order_is_invoiced_once").debug()


@reads("docs/howto/async.md")
def async_bodies(examples: Examples) -> None:
    found = examples.run()
    file = CustomerFile.objects.create(text="a long text")
    found.summarize.delay(file.pk)
    assert [job.result for job in run_jobs()] == ["a long tex"]
    examples.run_settings()
    examples.run().SummaryTest("test_a_file_is_summarized").debug()


@reads("docs/howto/batches.md")
def batches(examples: Examples) -> None:
    key, look_again = examples.run().import_file("feed", [1, 2]), examples.run().look_again
    with Batch.objects.get(pk=key).adding():
        look_again.delay([3])
    ran = run_jobs(until=timezone.now() + timedelta(minutes=2))
    assert [job.task for job in ran] == [
        *2 * ["imports.tasks.import_row"],
        "example_1.look_again",
        "imports.tasks.import_row",
        "imports.tasks.report",
    ]


@reads("docs/howto/fast.md")
def fast(examples: Examples) -> None:
    count, source = examples.run().count, Import.objects.create()
    count.delay(source.pk)
    run_jobs()
    assert Import.objects.get(pk=source.pk).position == 1
    examples.run_settings()
    examples.run().move.delay(source.pk)
    run_jobs()
    assert Import.objects.get(pk=source.pk).position == 2


@reads("docs/howto/databases.md")
def databases(examples: Examples) -> None:
    connections.settings["shop"] = connections.settings["default"]
    examples.run_settings()


@reads("docs/howto/django-tasks.md")
def django_tasks(examples: Examples) -> None:
    examples.run_settings()
    if django.VERSION < (6,):
        sys.modules["django.tasks"] = importlib.import_module("django_tasks")
    examples.run()
    views = examples.run()
    request = RequestFactory().post("/")
    request.user = User.objects.create_user("ann", "ann@example.com")
    key = views.ask(request).content.decode()
    assert b'"data": null' in views.answer(request, key).content
    run_jobs()
    assert b"ann@example.com" in views.answer(request, key).content
    examples.run()
    assert [job.result for job in run_jobs()] == [3]


@reads("docs/howto/durable.md")
def durable(examples: Examples) -> None:
    trials = examples.run()
    with pytest.raises(RuntimeError, match="needs a job"):
        trials.trial(new_order().customer_id, [])
    monthly = examples.run().monthly
    with patch.object(monthly._get_current_object(), "version", lambda name: False):
        before = monthly.delay("today")  # by the old code
        run_jobs()
    after = monthly.delay("today")
    run_jobs(until=timezone.now() + timedelta(hours=2))
    assert (before.get(), after.get()) == ("today: old", "today: new")
    Customer.objects.all().delete()
    tests = examples.run().TrialTest
    for name in ("test_who_is_approved_is_charged", "test_a_week_without_an_answer_takes_the_order_back"):
        tests(name).debug()
        Customer.objects.all().delete()


@reads("docs/howto/events.md")
def events(examples: Examples) -> None:
    examples.run(INSTALLED_APPS=[])
    told = examples.run()
    with pytest.raises(ValueError, match="nobody pays nothing"):
        told.order_paid(1, 0, "ada@example.com")
    examples.run()
    examples.run()
    with override_settings():
        for _ in range(3):
            examples.run_settings()
    settings.JOBS = {**settings.JOBS, "SERVICE": "shop", "EVENT_BROKER": None}
    celery.current_app.conf.task_default_queue = "celery"
    newer = examples.run()
    newer.order_paid(1, 2, "ada@example.com")
    [job] = [job for job in run_jobs() if job.task.endswith("award_voucher_in")]
    assert job.kwargs["currency"] == "EUR"
    Event.objects.all().delete()
    examples.run().PaidTest("test_a_large_order_brings_a_voucher").debug()


@reads("docs/howto/external-effects.md")
def external_effects(examples: Examples) -> None:
    order = new_order()
    examples.run().charge_order.delay(order.pk)
    with patch("shop.payments.charge", return_value={"id": "ch_1"}) as charge:
        run_jobs()
    assert charge.call_args.kwargs == {"idempotency_key": f"charge:{order.public_id}"}
    assert Order.objects.get().charge == "ch_1"
    assert Effect.objects.get().state == "sent"


@reads("docs/howto/fair.md")
def fair(examples: Examples) -> None:
    examples.run().import_row.delay(7, {})
    assert Job.objects.get().fair_key == "7"
    examples.run_settings()


@reads("docs/howto/install.md")
def install(examples: Examples) -> None:
    examples.run_settings()
    assert examples.run().app.main == "proj"
    examples.run_settings()
    assert examples.run().export.is_transactional
    examples.run_settings()
    assert examples.run().BackgroundJobs.label == "background_jobs"


@reads("docs/howto/weblate.md")
def weblate(examples: Examples) -> None:
    celery.current_app.main = "weblate"
    examples.run_settings()


@reads("docs/howto/limits.md")
def limits(examples: Examples) -> None:
    found = examples.run()
    found.sync.delay(7)
    assert Job.objects.get().limit_key
    examples.run_settings()


@reads("docs/howto/migrate-from-celery.md")
def migrate_from_celery(examples: Examples) -> None:
    found = examples.run()
    customer = Customer.objects.create(name="ann", email="ann@example.com")
    for _ in range(2):
        found.welcome.delay(customer.pk)
    run_jobs()
    assert len(mail.outbox) == 1
    examples.run_settings()
    assert not examples.run().is_long


@reads("docs/howto/pretix.md")
def pretix(examples: Examples) -> None:
    """With pretix itself in ``tests/products/pretix``."""
    theirs = types.ModuleType("pretix.settings")
    theirs.CELERY_BROKER_URL = settings.CELERY_BROKER_URL  # type: ignore[attr-defined]
    theirs.CELERY_BROKER_TRANSPORT_OPTIONS = {"priority_steps": [0, 4, 8]}  # type: ignore[attr-defined]
    with patch.dict(sys.modules, {"pretix": types.ModuleType("pretix"), "pretix.settings": theirs}):
        celery.Celery("pretix", task_cls="jobs.task:Task")
        examples.run_settings()


@reads("docs/howto/locks.md")
def locks(examples: Examples) -> None:
    found = examples.run()
    Import.objects.create(source=__file__)
    found.import_feed.delay(__file__)
    run_jobs()
    assert Import.objects.get().position > 100
    found.rename(__file__, "moved")
    assert Import.objects.get().source == "moved"


@reads("docs/howto/migrate-from-procrastinate.md")
def migrate_from_procrastinate(examples: Examples) -> None:
    examples.run().sign_up(1)
    ran = run_jobs(until=timezone.now() + timedelta(minutes=2))
    names = [job.task.removeprefix("accounts.tasks.") for job in ran]
    assert sorted(names) == ["summarize", *3 * ["sync"], *2 * ["welcome"]]


@reads("docs/howto/migrate-from-temporal.md")
def migrate_from_temporal(examples: Examples) -> None:
    trials, order = examples.run(), new_order()
    for _ in range(2):
        trials.begin(order.customer_id)
    run_jobs(until=timezone.now() + timedelta(days=3))
    trials.approve(order.customer_id, "ada")
    [last] = run_jobs()
    assert last.result.endswith(", by ada")
    trials.begin(order.customer_id)
    run_jobs(until=timezone.now() + timedelta(days=10))
    assert Job.objects.order_by("pk").last().result == "nobody approved"


@reads("docs/howto/monitor.md")
def monitor(examples: Examples) -> None:
    examples.run()
    found = examples.run()
    found.set_up()
    found.flush()


@reads("docs/howto/once.md")
def once(examples: Examples) -> None:
    found, order = examples.run(), new_order()
    found.welcome.delay(order.customer_id)
    found.welcome.delay(order.customer_id)
    assert found.summarize.delay("today").id == found.summarize.delay("today").id
    found.remind.delay(order.pk)
    for _ in range(2):
        found.give_voucher(order.customer)
    run_jobs()
    assert [each.extra_headers for each in mail.outbox] == [
        {"Message-ID": f"<welcome:{order.customer_id}@example.com>"}
    ]
    assert Order.objects.filter(cents=0).count() == 1
    assert Job.objects.get(state="scheduled").snoozes == 1


@reads("docs/howto/progress.md")
def progress(examples: Examples) -> None:
    order = new_order()
    result = examples.run().report.delay(str(order.created_at.date()))
    run_jobs()
    assert Job.objects.get(pk=result.id).result == 1000
    file = CustomerFile.objects.create(text="ada@example.org bob@example.org", job=result.id)
    answer = examples.run().progress(RequestFactory().get("/"), file.public_id)
    assert b"succeeded" in answer.content
    examples.run().import_addresses.delay(file.pk)
    run_jobs()
    assert Customer.objects.filter(email__endswith="example.org").count() == 2
    [tag] = fences(examples.page, "html+django")
    assert "succeeded" in engines["django"].from_string(tag).render({"file": file})


@reads("docs/howto/recipes.md")
def recipes(examples: Examples) -> None:
    async def ask(text: str) -> str:
        return text.upper()

    sys.modules["summaries"] = types.ModuleType("summaries")
    vars(sys.modules["summaries"])["ask"] = ask
    file, order = CustomerFile.objects.create(text="a"), new_order()
    examples.run().summarize.delay(file.pk)
    assert examples.run().import_row.delay(order.customer_id, {}).get is not None
    assert Job.objects.get(task__endswith="import_row").fair_key == str(order.customer_id)
    examples.run().trial.delay(order.customer_id)
    run_jobs(until=timezone.now() + timedelta(days=1), schedules=False)
    assert CustomerFile.objects.get().text == "A"
    assert set(Order.objects.values_list("charge", flat=True)) == {""}
    run_jobs(until=timezone.now() + timedelta(days=3), schedules=False)
    assert set(Order.objects.values_list("charge", flat=True)) == {"", "expired"}
    report = examples.run().report
    [job] = run_jobs(until=timezone.now() + timedelta(days=1), schedules=[report.name])
    assert job.task == report.name
    examples.run().deliver.delay("http://localhost:1/", {})
    with patch("urllib.request.urlopen") as call:
        run_jobs(schedules=False)
    assert call.call_args.args[0].data == b"{}"
    examples.run().ask_provider.delay(7, "why?")
    assert Job.objects.get(task__endswith="ask_provider").limit_key
    examples.run().export.delay([1, 2])
    run_jobs(schedules=False)
    examples.run().import_all(10)
    assert [job.task.rpartition(".")[2] for job in run_jobs(schedules=False)] == [*10 * ["import_row"], "done"]
    Job.objects.all().delete()
    ada, found = User.objects.create_user("ada"), examples.run()
    result = found.send_summary.delay(ada.pk)
    found.close_account(types.SimpleNamespace(user=ada), ada)
    assert Job.objects.get(pk=result.id).state == "cancelled"
    assert examples.run().JOBS["ENCRYPT"]
    examples.run()
    examples.run().order_paid(1, 500)
    assert [job.task for job in run_jobs(schedules=False)][-1].endswith("award_points")


@reads("docs/howto/schedules.md")
def schedules(examples: Examples) -> None:
    examples.run_settings()
    examples.run()
    test = examples.run().NightTest("test_the_report_is_made")
    test.debug()


@reads("docs/howto/encrypt.md")
def encrypt(examples: Examples) -> None:
    os.environ["JOBS_ENCRYPT_KEYS"] = "0123456789abcdef" * 2 + "0123456789a="
    examples.run_settings()


@reads("docs/howto/tags.md")
def tags(examples: Examples) -> None:
    ada = User.objects.create_user("ada")
    found = examples.run()
    result = found.send_summary.delay(ada.pk)
    found.close_account(types.SimpleNamespace(user=ada), ada)
    assert Job.objects.get(pk=result.id).state == "cancelled"
    handle = examples.run().middleware(lambda request: charge_order.delay(5))
    result = handle(types.SimpleNamespace(user=ada))
    assert Job.objects.get(tags__have={"user": ada.pk}, pk=result.id)
    examples.run().clean_up(result, ada)
    assert Job.objects.get(pk=result.id).state == "cancelled"


@reads("docs/howto/webhooks.md")
def webhooks(examples: Examples) -> None:
    settings.ADMINS = ["ada@example.com"] if django.VERSION >= (6,) else [("Ada", "ada@example.com")]
    deliver, told = examples.run().deliver, examples.run()
    gone = urllib.error.HTTPError("http://localhost/", 404, "gone", Message(), None)
    busy = urllib.error.HTTPError("http://localhost/", 503, "busy", Message(), None)
    deliver.delay("http://localhost/", {"id": 7})
    with patch("urllib.request.urlopen", side_effect=[busy, gone]) as call:
        ran = run_jobs(until=timezone.now() + timedelta(minutes=1), raises=False)
        assert [job.state for job in ran] == ["scheduled", "failed"], [j.error for j in ran]
    first, second = (each.args[0].get_header("Webhook-id") for each in call.call_args_list)
    assert first == second
    assert "404" in mail.outbox[0].body
    assert signals.failed.disconnect(told.tell, sender=deliver.name)
    views, order = examples.run(), new_order()
    for _ in range(2):
        body = json.dumps({"id": "evt_1", "order": str(order.public_id)})
        assert views.receive(RequestFactory().post("/", body, "application/json")).status_code == 202
    run_jobs()
    assert Order.objects.get().charge == "evt_1"


@reads("docs/reference/results.md")
def results(examples: Examples) -> None:
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(0.02):
            run_jobs()
        connections.close_all()

    threading.settrace(examples.trace)
    worker = threading.Thread(target=work)
    worker.start()
    try:
        examples.run()
    finally:
        is_over.set()
        worker.join()


@reads("docs/reference/signals.md")
def all_signals(examples: Examples) -> None:
    settings.ADMINS = ["ada@example.com"] if django.VERSION >= (6,) else [("Ada", "ada@example.com")]
    found = examples.run()
    charge_order.delay("no number")
    run_jobs(raises=False)
    assert "ValueError" in mail.outbox[0].body
    assert signals.failed.disconnect(found.alert)


@reads("docs/reference/typos-and-retries.md")
def typos(examples: Examples) -> None:
    celery.current_app.finalize()
    for source in examples.sources:
        [says] = re.findall(r"# TypeError: (.*)", source)
        with pytest.raises(TypeError, match=re.escape(says)):
            examples.run()


def new_job_that_ended() -> Job:
    charge_order.delay(0)
    run_jobs()
    return Job.objects.get()


def new_order() -> Order:
    customer = Customer.objects.create(name="Ada", email="ada@example.com")
    return Order.objects.create(customer=customer, cents=1000)


def apart(directory: Path, work: Callable[[], None]) -> None:
    """In a process of its own that may neither send mail nor ask anybody, on this test's own databases."""
    with patch("jobs.contrib.crashtest.child.use"):
        Children((), directory, is_sealed=True).do(work)


def read(page: Path) -> None:
    """In a process of its own: tasks, schedules and receivers are for ever."""
    examples = Examples(page)

    def all_of_them(examples: Examples) -> None:
        while examples.left:
            is_settings = re.match(r"# \S*settings\.py|[A-Z_]+ = ", examples.left[0][1])
            examples.run_settings() if is_settings else examples.run()

    sys.settrace(examples.trace)
    # An event loop has one of its own.
    threading.settrace(examples.trace)
    try:
        READERS.get(name_of(page), all_of_them)(examples)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    assert not examples.left, f"nobody runs {examples.left}"
    missed = [text for place, text in sorted(examples.expected.items()) if place not in examples.ran]
    assert not missed, f"nobody runs {missed}"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if fences(page, "python") and name_of(page) not in ELSEWHERE], ids=name_of
)
def test_each_line_of_the_python_runs(page, tmp_path):
    apart(tmp_path, lambda: read(page))


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_what_a_new_project_gets_has_a_place(page):
    """Else nobody would run it (``Project.follow``)."""
    assert all(re.match(r"# \w+/\w+\.py", source) for source in fences(ROOT / page, "python"))


def test_a_recipe_has_at_most_ten_lines():
    sources = fences(ROOT / "docs" / "howto" / "recipes.md", "python")
    assert {len([line for line in source.splitlines() if line]) for source in sources} <= set(range(1, 11))


# Settings within a sentence


def spans(page: Path) -> list[str]:
    """Code within sentences."""
    text = FENCE.sub("", page.read_text())
    return [" ".join(each.split()) for each in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_settings_in_sentences_are_right(page, settings):
    for span in spans(page):
        if span.startswith("JOBS = {"):
            settings.JOBS = eval(span.removeprefix("JOBS = "), {"timedelta": timedelta})
            assert problems() == [], span


# Commands

#: What stands for something of the reader's.
STANDS_FOR = {
    "ID...": uuid(),
    "ID": uuid(),
    "BATCH-ID": uuid(),
    "QUEUE": "mail",
    "NAME": "mail",
    "N": "9",
    "TASK": "shop.tasks.sync",
    "RATE": "100/m",
    "CLASS": "OSError",
    "...": "",
}


def commands(page: Path) -> Iterator[list[str]]:
    """Each command of a page, word by word."""
    lines = [line for text in fences(page, "sh") for line in text.replace("\\\n", " ").splitlines()]
    ours = r"(python )?manage\.py \w|celery (-A proj )?(worker|control|inspect|purge|call|multi)\b|jobs (%s) |pytest \w"
    ours = re.compile(ours % "|".join(Command.subcommands))
    lines += [span for span in spans(page) if ours.match(span)]
    for line in lines:
        words = [STANDS_FOR.get(word, word) for word in shlex.split(line, comments=True)]
        while words:
            end = next((number for number, word in enumerate(words) if word in ("&&", "|")), len(words))
            yield words[:end]
            words = words[end + 1 :]


def parse(words: list[str]) -> None:
    """As the command itself would."""
    words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    program, *words = words[1:] if words[0] == "python" and words[1].endswith(".py") else words
    if program == "jobs":
        program, words = "manage.py", ["jobs", *words]
    if program in ("manage.py", "django-admin"):
        name, *words = words
        if name == "jobs" and len(words) < 2 and set(" ".join(words).split("|")) <= {"", *Command.subcommands}:
            return  # names in a sentence
        command = load_command_class(get_commands()[name], name)
        command.create_parser(program, name).parse_args(words)
    elif program == "celery":
        context = click.Context(celery_command, info_name="celery")
        celery_command.parse_args(context, words)
        name, command, words = celery_command.resolve_command(context, context._protected_args + context.args)
        command.make_parser(click.Context(command, parent=context)).parse_args(words)
    elif program == "python" and words[0] == "-m":
        assert find_spec(words[1]), words
    elif program in ("pytest", "mkdocs"):
        assert find_spec(program)
        assert all((ROOT / word).exists() for word in words if "/" in word)
    elif program == "pip":
        assert words[0] == "install"
        known = re.findall(r"^(\w+) =$", (ROOT / "setup.cfg").read_text().partition("extras_require]")[2], re.M)
        assert all(set(found.split(",")) <= set(known) for found in re.findall(r"\[(.*)\]", " ".join(words)))
    elif program.endswith(".py"):
        assert (ROOT / program).exists()
    else:
        assert program in NOT_OURS, program


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_command_is_one(page, capsys):
    for words in commands(page):
        try:
            parse(words)
        except SystemExit:
            pytest.fail(f"{shlex.join(words)}: {capsys.readouterr().err}")


#: Ours that need more than this process, or do not end by themselves.
ENDLESS = ("rescue", "prune", "doctor", "crashtest", "init", "audit", "mcp", "top")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_ours_do_something(tmp_path):
    """Run them, in a database with one job: they may refuse what they are told to do, and not break."""

    def run_all() -> None:
        os.chdir(tmp_path)  # where some write files
        job = new_job_that_ended()
        os.chdir(tmp_path)
        for page in PAGES:
            for words in commands(page):
                words = [str(job.pk) if word == STANDS_FOR["ID"] else word for word in words]
                if "jobs" not in words[:-1] or (words := words[words.index("jobs") + 1 :])[0] in ENDLESS:
                    continue
                with contextlib.suppress(CommandError):
                    call_command("jobs", *words, stdout=io.StringIO(), skip_checks=True)

    apart(tmp_path, run_all)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_nothing_else_stands_unseen(page):
    kinds = {kind for _, kind, _ in FENCE.findall(page.read_text())}
    assert kinds <= {"python", "sh", "html+django", *NOT_RUN}
    for text in fences(page, "ini"):
        configparser.ConfigParser().read_string(text)
    for text in fences(page, "yaml"):
        assert yaml.safe_load(text)
    # Code that is indented has no language, and nobody would run it.
    assert not re.search(r"(?m)^\n {4}(?![ *-])", FENCE.sub("", page.read_text()))
