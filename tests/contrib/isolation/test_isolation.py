"""What no rollback takes back is found inside of a transaction: where it happens, with the cure."""

from __future__ import annotations

import re
import smtplib
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import celery
import pytest
from celery import shared_task
from django.core import mail
from django.core.cache import cache
from django.db import transaction
from kombu import pools

from jobs.errors import NotIsolated, NotIsolatedWarning
from jobs.testing import isolation, run_jobs
from tests.helpers.harness import effects
from tests.models import Effect

pytestmark = [pytest.mark.database]


@shared_task
def mails():
    send_mail()


@shared_task(atomic=False)
def mails_by_itself():
    send_mail()


@shared_task(grouped=True)
def mails_in_a_group():
    send_mail()


@shared_task(base=celery.Task)
def stock():
    """Left to Celery."""


def send_mail():
    mail.send_mail("Welcome", "", None, ["ada@example.com"])


def request():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


EFFECTS = {
    "mail": (send_mail, r"the mail 'Welcome' inside of a transaction of the database 'default'.*enqueue a job"),
    "http": (request, r"a request to 127\.0\.0\.1 inside.*enqueue a job"),
    "cache": (lambda: cache.set("a", 1), r"set\(\) of a cache inside.*on_commit"),
    "celery": (stock.delay, rf"the stock task {stock.name} inside.*base=jobs\.Task"),
}


@pytest.fixture(
    autouse=True,
    params=[
        pytest.param("TestCase", marks=pytest.mark.django_db),
        pytest.param("TransactionTestCase", marks=pytest.mark.django_db(transaction=True)),
    ],
)
def case(request):
    yield request.param
    # The broker's connection would keep the test database from being dropped.
    pools.reset()
    celery.current_app._get_current_object()._after_fork()


def send_mails():
    mail.send_mass_mail([("Welcome", "", None, ["ada@example.com"])])


@pytest.mark.parametrize(
    ("kind", "effect", "text"),
    [*((kind, *each) for kind, each in EFFECTS.items()), ("mail", send_mails, "mails inside of a transaction")],
)
def test_each_is_found_in_a_transaction_and_only_there(kind, effect, text):
    with isolation():
        effect()
        with transaction.atomic():
            with pytest.raises(NotIsolated, match=text):
                effect()
            with isolation(allow=[kind]):
                effect()
            with isolation(None):
                effect()
            with isolation("warn"), pytest.warns(NotIsolatedWarning, match=text) as told:
                effect()
            assert len([each for each in told if each.category is NotIsolatedWarning]) == 1
    with transaction.atomic():
        effect()


@pytest.mark.parametrize("name", ["add", "incr", "delete", "touch", "set_many", "delete_many", "clear"])
def test_whatever_writes_to_a_cache(name):
    values = {"add": ("a", 1), "set_many": ({"a": 1},), "delete_many": (["a"],), "clear": ()}
    with isolation(), transaction.atomic():
        assert cache.get("b") is None
        with pytest.raises(NotIsolated, match=rf"{name}\(\) of a cache"):
            getattr(cache, name)(*values.get(name, ("a",)))


def test_a_mail_that_goes_past_django():
    with isolation(), transaction.atomic(), pytest.raises(NotIsolated):
        smtplib.SMTP().sendmail("a@example.com", ["b@example.com"], "")


def test_after_the_commit_all_is_right(django_capture_on_commit_callbacks):
    with isolation(), django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        transaction.on_commit(send_mail)
    assert len(mail.outbox) == 1


def test_the_body_of_a_job_has_a_cure_of_its_own():
    mails.delay()
    with (
        isolation(),
        pytest.raises(NotIsolated, match=rf"atomic=False.*add 'mail' or '{mails.name}'"),
    ):
        run_jobs()
    mails.delay()
    with isolation(allow=["tests.contrib.isolation.test_isolation.*"]):
        run_jobs()
    mails_by_itself.delay()
    with isolation():
        run_jobs()
    assert len(mail.outbox) == 2


def test_settings_say_so_for_all(settings):
    with isolation(None):
        """From here on the process is watched, as it is from its start with the setting."""
    settings.JOBS = {**settings.JOBS, "ISOLATION": "raise"}
    with transaction.atomic(), pytest.raises(NotIsolated):
        send_mail()
    settings.JOBS = {**settings.JOBS, "ISOLATION_ALLOW": ["mail"]}
    with transaction.atomic():
        send_mail()


def test_another_mode_is_refused():
    with pytest.raises(ValueError, match="'raise' or 'warn'"), isolation("log"):
        pass


@pytest.mark.django_db(transaction=True)
def test_what_is_allowed_elsewhere_is_not_in_the_body_of_a_grouped_task(settings):
    """A neighbour that fails has it happen again."""
    mails_in_a_group.delay()
    with isolation(allow=["mail", "jobs.*"]):
        [job] = run_jobs(raises=False)
    assert (job.state, mail.outbox) == ("failed", [])
    assert job.error["type"] == "NotIsolated"
    assert "leave grouped=True out" in job.error["message"]
    assert "add 'tests.contrib.isolation.test_isolation.mails_in_a_group' to" in job.error["message"]
    mails_in_a_group.delay()
    with isolation(allow=[mails_in_a_group.name]):
        [job] = run_jobs()
    assert (job.state, len(mail.outbox)) == ("succeeded", 1)


@shared_task
def claims_and_mails():
    with transaction.atomic():
        Effect.objects.create(key="claimed")
    send_mail()


@shared_task(atomic=False)
def claims_by_itself():
    with transaction.atomic():
        Effect.objects.create(key="claimed")
    send_mail()


def test_a_claim_that_the_body_does_not_commit_before_it_acts_is_said_with_its_place():
    """With Celery a run that comes after a crash would find it."""
    claims_and_mails.delay()
    place = rf"{re.escape(__file__)}:{claims_and_mails.run.__code__.co_firstlineno + 2}"
    with isolation(), pytest.raises(NotIsolated, match=rf"ended at {place}, which.*'atomic': False"):
        run_jobs(raises=True)


def test_a_claim_that_is_committed_is_none(case):
    claims_by_itself.delay()
    with isolation():
        run_jobs(raises=True)
    assert effects() == {"claimed": 1}


def test_a_block_of_another_run_is_not_meant():
    claims_by_itself.delay()
    mails.delay()
    with isolation(), pytest.raises(NotIsolated) as raised:
        run_jobs(raises=True)
    assert "ended at" not in str(raised.value)
