"""The example's second service, as the tests run it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.utils import load_backend

from jobs import store
from shop.settings import database
from tests.faults.worker import Worker
from tests.helpers import harness

#: The alias of this process for its database, where that is not the shop's.
ALIAS = "loyalty"


class LoyaltyWorker(Worker):
    """``celery -A shop.loyalty worker``, on the database of the URL; without one on the shop's."""

    app = "shop.loyalty"

    def __init__(self, *options: str, url: str = "", **more: Any) -> None:
        super().__init__(*options, **{"wait": False, **environment(url), **more})


def environment(url: str = "") -> dict[str, str]:
    return {
        "DJANGO_SETTINGS_MODULE": "tests.helpers.loyalty_settings",
        "EVENT_BROKER_URL": settings.JOBS.get("EVENT_BROKER") or "",
        "LOYALTY_DATABASE_URL": url,
    }


def migrate(url: str) -> None:
    env = harness.environment(**environment(url))
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], env=env, cwd=harness.ROOT, check=True)


@contextmanager
def alias_of(url: str) -> Iterator[str]:
    """An alias of this process for another service's database."""
    connections.settings[ALIAS] = {**connections.settings["default"], **database(url)}
    # Django's tests refuse to open a database that they did not make, unless it goes by this name.
    backend = load_backend(connections.settings[ALIAS]["ENGINE"])
    wrapper = backend.DatabaseWrapper(connections.settings[ALIAS], NO_DB_ALIAS)
    connections[ALIAS] = connections[NO_DB_ALIAS] = wrapper
    try:
        yield ALIAS
    finally:
        wrapper.close()
        del connections[ALIAS], connections[NO_DB_ALIAS], connections.settings[ALIAS]
        # The next one of this name may be of another kind.
        store.of.cache_clear()
