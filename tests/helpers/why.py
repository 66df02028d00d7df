"""What ``manage.py jobs why`` says of a job, and its page in the admin."""

from __future__ import annotations

import contextlib
import io
import json

from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from tests.helpers.servers import wait_for


def ask(key: object) -> dict:
    out = io.StringIO()
    with contextlib.suppress(CommandError):
        call_command("jobs", "why", str(key), "--json", stdout=out)
    return json.loads(out.getvalue())


def codes(key: object) -> list[str]:
    """The reasons in their order. What the text says is the same."""
    found = ask(key)
    out = io.StringIO()
    with contextlib.suppress(CommandError):
        call_command("jobs", "why", str(key), stdout=out)
    lines = [line for line in out.getvalue().splitlines() if line[:1].isdigit()]
    assert len(lines) == len(found["reasons"]) > 0
    return [reason["code"] for reason in found["reasons"]]


def first(key: object) -> dict:
    """The first reason; the job's page in the admin has the same one."""
    found = []

    def agree() -> bool:
        found[:] = [ask(key)["reasons"][0], on_page(key)]
        return found[0]["code"] == found[1]

    # Of one that comes and goes each may have seen another.
    wait_for(agree, 5, f"command and page agree: {found}")
    return found[0]


def on_page(key: object) -> str:
    client = Client()
    client.force_login(User.objects.get_or_create(username="ada", is_staff=True, is_superuser=True)[0])
    text = client.get(reverse("admin:jobs_job_change", args=[key])).content.decode()
    return text.partition('<li class="reason-')[2].partition('"')[0]
