"""Locks that others take: from another thread, which is in no block and no run of ours."""

from __future__ import annotations

import threading

from django.db import connections

from jobs import Busy, lock

#: The shortest TTL that the tests' clocks allow.
SHORT = 0.5


def elsewhere(action):
    """What ``action`` makes in another thread, which is in no block and no run of ours."""
    found = []

    def run():
        try:
            found.append(action())
        except Exception as exc:
            found.append(exc)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(40)
    assert found, "it hangs"
    return found[0]


def take(key="a", **more):
    """Take the lock and give it back; return the token, or the exception."""

    def once():
        with lock(key, ttl=SHORT, **more) as token:
            return token

    return elsewhere(once)


def is_held(key="a") -> bool:
    return isinstance(take(key), Busy)
