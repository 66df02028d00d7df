"""The encrypted arguments of a job, on its page, for people who may read them."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext

from jobs.contrib.inspection.view import View
from jobs.contrib.pages import html
from jobs.contrib.pages.base import may
from jobs.contrib.redaction.display import shown
from jobs.contrib.vault.tokens import CannotDecrypt, is_token, revealed


def job_page(request: HttpRequest, view: View) -> dict[str, str]:
    job: Any = view.job
    given = [*job.args, *job.kwargs.values()] if isinstance(job.args, list) and isinstance(job.kwargs, dict) else []
    if not any(map(is_token, given)) or not may(request, "decrypt_job"):
        return {}
    try:
        with revealed():
            seen = shown(job)
            text = html.pretty({"args": seen.args, "kwargs": seen.kwargs})
    except CannotDecrypt as exc:
        text = str(exc)
    return {"related": format_html("<dt>{}</dt><dd>{}</dd>", gettext("Decrypted arguments"), text)}
