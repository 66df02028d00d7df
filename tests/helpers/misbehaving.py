"""Bodies that go wrong: they kill their process, meet their limit, or raise what nobody expects."""

import ctypes
import os
import signal
import sys
import threading
import time

from celery import shared_task
from django.db import connection

from jobs.conf import syncpoints
from tests.helpers.gates import once_only
from tests.models import Effect, Order


class Unspeakable(Exception):
    """Cannot be pickled, and has no text."""

    def __init__(self):
        self.lock = threading.Lock()

    def __str__(self):
        raise ValueError("no text")


@shared_task(time_limit=20)
def misbehaves(key, how, marker=None):
    """Leave an effect, and then go wrong; with a marker only the first time."""
    Effect.objects.create(key=key, pid=os.getpid())
    if marker and not once_only(f"{marker}-{key}"):
        return
    match how:
        case "memory":
            raise MemoryError("no memory")
        case "exit":
            sys.exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "nul":
            raise ValueError("a\0b \ud800")
        case "unspeakable":
            raise Unspeakable
        case "ended":
            # Else the completion takes the COMMIT along.
            syncpoints.arm(lambda point: None)
            end_at("_commit")
        case "ended_in_conflict":
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                conflict()
        case "ended_in_rollback":
            end_at("_rollback")
            raise ValueError(how)
        case "ended_in_function":
            connection.ensure_connection()
            connection.connection.create_function("strike", 0, lambda: os.kill(os.getpid(), signal.SIGTERM))
            with connection.cursor() as cursor:
                cursor.execute("SELECT strike()")
        case "recursion":
            misbehaves.run(key + "-", how)
        case "deadline":
            raise TimeoutError("the provider does not answer")
        case _:
            raise ValueError(how)


@shared_task(soft_time_limit=1, time_limit=20)
def sleeps_softly(key, where="python"):
    _sleep(key, where)


@shared_task(soft_time_limit=1, time_limit=20, atomic=False)
def sleeps_bare(key, where="autocommit"):
    _sleep(key, where)


@shared_task(time_limit=2)
def sleeps_hard(key, where="python"):
    _sleep(key, where)


def _sleep(key, where):
    """Meet a limit in mid-body, in mid-query with a lock, or inside the COMMIT (see ``Database.slow_commits``)."""
    if where != "autocommit":
        Effect.objects.create(key=key, note="slow commit" if where == "commit" else "")
    if where == "query":
        Order.objects.select_for_update().order_by("pk").first()
    if where in ("query", "autocommit"):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")
    if where == "python":
        time.sleep(60)


def conflict():
    with connection.cursor() as cursor:
        cursor.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")


def end_at(name):
    """SIGTERM just before the next COMMIT or ROLLBACK: Django's cleanup meets an open transaction.

    PostgreSQL's driver complains of that; SQLite's commits.
    """
    end = getattr(connection, name)
    setattr(connection, name, lambda: (setattr(connection, name, end), os.kill(os.getpid(), signal.SIGTERM)))
