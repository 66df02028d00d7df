"""The reasons on a job's page: each command is replaced by the name of a button, or by a link."""

import re

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.html import escape, format_html
from django.utils.safestring import mark_safe
from django.utils.translation import gettext

from jobs.contrib.inspection.view import View
from jobs.contrib.operations.actions import OPERATIONS
from jobs.contrib.pages import html
from jobs.contrib.pages.base import may
from jobs.contrib.why.explain import of
from jobs.models.values import parse_uuid

#: The commands for which a page has a button or a link. A name may be quoted, and is escaped by then.
COMMAND = re.compile(
    r"manage\.py jobs (run|retry|cancel|kill|resume|schedule --resume|why) "
    r"((?:&#x27;.*?&#x27;|&quot;.*?&quot;)+|[^\s,;)]+)"
)


def reasons(request: HttpRequest, view: View) -> str:
    found = [(each, _in_words(each.cure)) for each in of(view) if not each.permission or may(request, each.permission)]
    return render_to_string("jobs/admin/job/why.html", {"reasons": found}, request)


def _in_words(cure: str) -> str:
    """A cure in which the name of a button, or a link, replaces a command."""

    def word(found: re.Match[str]) -> str:
        verb, of = found.groups()
        if verb == "why" and (key := parse_uuid(of)) is not None:
            return html.link(gettext("Show the job"), "job_change", key)
        label = OPERATIONS[verb].label if verb in OPERATIONS else gettext("Resume")
        return format_html("<strong>{}</strong>", label)

    return mark_safe(COMMAND.sub(word, escape(cure)))
