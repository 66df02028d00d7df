"""The example behind a real ASGI server."""

from __future__ import annotations

import sys

from django.contrib.auth.models import Permission, User
from django.test import Client

from tests.helpers import harness
from tests.helpers.servers import Server, die_with_parent


class Uvicorn(Server):
    name = "uvicorn"

    def command(self) -> list[str]:
        app = ["--factory", "django.core.asgi:get_asgi_application"]
        return die_with_parent(sys.executable, "-m", "uvicorn", *app, "--host", "127.0.0.1", "--port", str(self.port))

    def environment(self) -> dict[str, str]:
        return harness.environment()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def session_of(*codenames: str) -> str:
    """The session of somebody who may enter the admin, and has these permissions."""
    user, _ = User.objects.get_or_create(username="grace", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return str(client.cookies["sessionid"].value)
