"""What a project hides, as ``JOBS[\"REDACT\"]``, and where somebody could look for it."""

from __future__ import annotations

import io
from importlib.util import find_spec

from django.core.management import call_command

from jobs.contrib.pages.html import url_of
from tests.helpers.rows import make


def redact(settings, name="tests.helpers.redactions.hide_secrets"):
    settings.JOBS = {**settings.JOBS, "REDACT": name}


def nothing(task, name, value):
    """A project that hides no argument by itself."""
    return value


SECRET = "s3cret-4711"


ENTRY = {
    "type": "ValueError",
    "message": f"no account {SECRET} {{'note': '{SECRET}'}}",
    "traceback": f"Traceback\n  ValueError: {SECRET}",
    "args": [SECRET, 7],
    "at": "2026-01-02T03:04:05+00:00",
    "attempt": 1,
}


def failed(**more):
    return make("failed", args=["key"], kwargs={"note": SECRET}, error=ENTRY, errors=[ENTRY, ENTRY], lease=1, **more)


def commands(*calls: list[str]) -> str:
    out = io.StringIO()
    for call in calls:
        call_command("jobs", *call, stdout=out)
    return out.getvalue()


def of_job(job) -> str:
    shown = [["show", str(job.pk)], ["list"]]
    if find_spec("jobs.contrib.why"):
        shown.append(["why", str(job.pk)])
    return commands(*shown, *([*call, "--json"] for call in shown))


def text_of(client, *pages: tuple[str, list]) -> str:
    return "".join(client.get(url_of(name, *args)).content.decode() for name, args in pages)


def hide_secrets(task: str, name: str, value):
    if name == "note" and value == "bad":
        raise ValueError(value)
    return "***" if name in ("note", "result", "rest") else value


def hide_answers(task: str, name: str, value):
    assert task == "tests.tasks.effect"
    return "***" if name == "answer" else value


def hide_errors_and_keys(task: str, name: str, value):
    return "***" if name in ("error", "key", "progress") else value
