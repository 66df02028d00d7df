"""The second service of the example, as the tests run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.conf import settings

from tests import harness

SETTINGS = "tests.loyalty_settings"


class LoyaltyWorker(harness.Worker):
    """``celery -A shop.loyalty worker``: over RabbitMQ with a database of its own, else with the shop's."""

    app = "shop.loyalty"

    def __init__(self, *options: str, url: str = "", wait: bool = False, **more: Any) -> None:
        super().__init__(*options, wait=wait, **environment(url), **more)


def environment(url: str = "") -> dict[str, str]:
    broker = settings.JOBS.get("EVENT_BROKER") or ""
    return {"DJANGO_SETTINGS_MODULE": SETTINGS, "EVENT_BROKER_URL": broker, "LOYALTY_DATABASE_URL": url}


def migrated(directory: Path) -> str:
    """The URL of a database of its own."""
    url = f"sqlite:///{directory / 'loyalty.sqlite3'}"
    env = {**os.environ, **environment(url)}
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], env=env, cwd=harness.ROOT, check=True)
    return url
