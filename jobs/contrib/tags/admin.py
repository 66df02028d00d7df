"""The tags of a job, on its page."""

from typing import Any

from django.utils.html import format_html_join
from django.utils.translation import gettext_lazy as _

from jobs.contrib.pages import html
from jobs.contrib.pages.html import column
from jobs.contrib.pages.job import JobAdmin


def _links(job: Any) -> str:
    """Each tag is a link to all jobs that have it."""
    pairs = [f"{name}={text}" for name, text in sorted((job.tags or {}).items())]
    return format_html_join(", ", "{}", ((html.link(pair, "job_changelist", tag=pair),) for pair in pairs))


JobAdmin.add_relative("linked_tags", "tags", column(_("tags"), _links))
