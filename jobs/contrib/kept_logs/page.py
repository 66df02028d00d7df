"""The lines of a job, on its page."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html

from jobs.contrib.inspection.view import View
from jobs.contrib.kept_logs import rows
from jobs.contrib.pages.base import may, template_of


def job_page(request: HttpRequest, view: View) -> dict[str, str]:
    if not (found := rows.attempts(view.job, reveals=may(request, "decrypt_job"))):
        return {}
    for each in found:
        each["is_hidden"] = each["first"] is None
        each["parts"] = [[_drawn(line) for line in each[name] or ()] for name in ("first", "last")]
    return {"history": template_of("lines.html", __file__).render({"attempts": found}, request)}


def _drawn(line: dict[str, Any]) -> dict[str, Any]:
    local = timezone.localtime(line["at"])
    text = f"{local:%H:%M:%S}.{local.microsecond // 1000:03}"
    return {**line, "time": format_html('<time datetime="{0}" title="{0}">{1}</time>', local.isoformat(), text)}
