"""The list of jobs in the admin, and a job's page."""

from __future__ import annotations

import html
import re
import uuid

from django.urls import reverse

from jobs.models import Job

LIST = reverse("admin:jobs_job_changelist")


def page(job: Job) -> str:
    return reverse("admin:jobs_job_change", args=[job.pk])


def listed(client, **query: object) -> list[str]:
    """The ids on the list, short as they stand there."""
    response = client.get(LIST, query)
    assert response.status_code == 200, response
    return re.findall(r'<th class="field-short_id"><a href="[^"]*">([0-9a-f]{8})</a>', response.content.decode())


def short(*jobs: Job) -> list[str]:
    return [str(job.pk)[-8:] for job in jobs]


def ids(response) -> list[uuid.UUID]:
    return [job.pk for job in response.context["cl"].result_list]


def links(response) -> dict[str, str]:
    """Where the four links of the paging lead, those that are there."""
    found = re.search(r'(?s)<nav class="paginator job-pages".*?</nav>', response.content.decode())[0]
    return {text: html.unescape(url) for url, text in re.findall(r'<a href="([^"]*)"[^>]*>([^<]*)</a>', found)}


ERROR = {
    "type": "ValueError",
    "message": "the message",
    "traceback": "Traceback of the newest",
    "at": "2026-01-02T03:04:05.678+00:00",
    "attempt": 3,
}
