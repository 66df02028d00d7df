"""django-post-office: it closes its connection in the body, so its tasks need ``atomic=False``."""

import pytest
from celery import current_app
from django.db import transaction
from post_office import mail
from post_office.models import Email

from jobs.contrib.checks import system as checks
from jobs.models import Job
from tests.helpers.harness import Worker, wait_ended

pytestmark = pytest.mark.django_db(transaction=True)


def queue(number: int) -> None:
    mail.send(f"{number}@example.com", "shop@example.com", subject=f"mail {number}", message="hello")


def test_mails_of_a_transaction_are_sent_once(mails):
    with transaction.atomic():
        for number in range(5):
            queue(number)
    with transaction.atomic():
        queue(99)
        transaction.set_rollback(True)
    keys = list(Job.objects.values_list("pk", flat=True))
    assert keys
    # One process: the file that is its lock has a race. Two that begin at once may both find it free, and the second to
    # make it raises FileExistsError.
    with Worker(concurrency=1):
        jobs = wait_ended(*keys)
    ended = {(job.task, job.state, job.error) for job in jobs}
    assert ended == {("post_office.tasks.send_queued_mail", "succeeded", None)}
    assert [sum(f"Subject: mail {number}\n" in text for text in mails()) for number in range(5)] == [1] * 5
    assert len(mails()) == 5
    assert set(Email.objects.values_list("status", flat=True)) == {0}, "sent"


def test_old_mails_are_cleaned_up():
    from post_office.tasks import cleanup_mail

    queue(1)
    Email.objects.update(created="2020-01-01T00:00Z")
    with Worker(concurrency=1):
        [job] = wait_ended(cleanup_mail.delay(days=30).id)
    assert job.state == "succeeded"
    assert not Email.objects.exists()


def test_without_the_option_a_check_says_so(settings):
    app = current_app._get_current_object()
    assert "jobs.W020" not in [message.id for message in checks.check_celery(app)]
    settings.JOBS = {}
    assert "jobs.W020" in [message.id for message in checks.check_celery(app)]
