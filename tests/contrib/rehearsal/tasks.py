"""Bodies of which somebody looks what they would do."""

import os
import urllib.request

from celery import shared_task
from django.core.cache import cache
from django.core.mail import send_mail
from django.db import connection, transaction

from jobs import Cancel, Snooze
from jobs.events import event
from tests import tasks
from tests.models import Effect


@event("tests.rehearsed")
def rehearsed(key): ...


@shared_task(bind=True)
def works(self, key):
    Effect.objects.create(key=key, pid=os.getpid())
    Effect.objects.filter(key="many").update(note="all")
    one = Effect.objects.get(key="one")
    one.note = "new"
    one.save()
    Effect.objects.get(key="gone").delete()
    tasks.effect.delay(f"{key}-called")
    rehearsed(key=key)
    transaction.on_commit(hook)
    self.progress(1, 2)
    self.checkpoint()
    send_mail("Hello", "text", "a@example.com", ["b@example.com"])
    cache.set("rehearsal", key)
    return key


def hook():
    raise AssertionError("nothing is committed")


@shared_task
def asks(key):
    Effect.objects.create(key=key, pid=os.getpid())
    urllib.request.urlopen("http://127.0.0.1:9/charge")


@shared_task
def breaks(key):
    Effect.objects.create(key=key, pid=os.getpid())
    with connection.cursor() as cursor:
        cursor.execute("SELECT nothing FROM nowhere")


@shared_task
def commits(key):
    Effect.objects.create(key=key, pid=os.getpid())
    with connection.cursor() as cursor:
        cursor.execute("COMMIT")


@shared_task(bind=True)
def again(self, key):
    raise self.retry(countdown=60)


@shared_task
def sleeps(key):
    raise Snooze(5, "not yet")


@shared_task
def ends(key):
    raise Cancel("not wanted")


@shared_task(atomic=False)
def own(key): ...
