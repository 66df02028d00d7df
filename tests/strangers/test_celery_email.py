"""django-celery-email: every mail of the project is a job."""

import pytest
from django.core.mail import EmailMessage, get_connection
from django.db import transaction

from jobs.models import Job
from tests.helpers.harness import Worker, wait_ended
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def send(*to: str) -> list:
    messages = [EmailMessage(f"to {name}", "hello", "shop@example.com", [name]) for name in to]
    return get_connection("djcelery_email.backends.CeleryEmailBackend").send_messages(messages)


def test_a_mail_leaves_after_the_commit_and_only_then(mails):
    with transaction.atomic():
        send("rolled@example.com")
        transaction.set_rollback(True)
    with transaction.atomic():
        [result] = send("ada@example.com")
    with Worker(concurrency=1):
        [job] = wait_ended(result.id)
    assert (job.state, job.result) == ("succeeded", 1)
    [text] = mails()
    assert "To: ada@example.com" in text


def test_of_many_mails_those_that_were_refused_go_again(mails):
    """Its task retries each refused mail by ``retry(throw=False)``, and goes on."""
    [result] = send("ada@example.com", "busy@example.com", "bob@example.com")
    with Worker(concurrency=1):
        wait_for(lambda: len(mails()) >= 3, 20, "all mails")
        [job] = wait_ended(result.id)
    assert (job.state, job.retries) == ("succeeded", 1)
    assert not Job.objects.exclude(state="succeeded").exists()
    for name in ("ada", "busy", "bob"):
        assert sum(f"To: {name}@" in text for text in mails()) == 1
