"""Who called whom, on the page of a job: a waterfall."""

from __future__ import annotations

import datetime
import html
import re

import pytest
from django.utils import timezone

from tests.helpers.admin_list import page
from tests.helpers.rows import ended, make

pytestmark = pytest.mark.django_db


def test_a_family_is_a_waterfall_on_one_scale(admin_client):
    now = timezone.now()
    seconds = datetime.timedelta(seconds=1)
    root = ended(now - 60 * seconds, ran=20.0, waited=20.0, task="shop.tasks.first", created_at=now - 100 * seconds)
    child = ended(
        now, ran=30.0, waited=30.0, task="shop.tasks.second", created_at=now - 60 * seconds, parent_id=root.pk,
        root=root.pk, state="failed",
    )  # fmt: skip
    make("scheduled", age=-3600, task="shop.tasks.third", parent_id=child.pk, root=root.pk, options={"group_index": 1})
    text = html.unescape(admin_client.get(page(child)).content.decode()).partition("Who called whom")[2]
    rows = re.findall(r"(?s)<tr><th scope=\"row\">(.*?)</tr>", text.partition("</table>")[0])
    said = [re.sub(r"<[^>]*>|\s+", " ", row).split() for row in rows]
    assert [" ".join(words) for words in said] == [
        "first succeeded waited 20 s, ran 20 s",
        "└ second failed waited 30 s, ran 30 s",
        "└ third part 2 scheduled waited 0.0 s",
    ]
    bars = [re.findall(r'class="time-(\w+)" x="([\d.]+)%" y="2" width="([\d.]+)%"', row) for row in rows]
    assert [[(look, round(float(x)), round(float(width))) for look, x, width in each] for each in bars[:2]] == [
        [("ready", 0, 20), ("running", 20, 20)],
        [("ready", 40, 30), ("failed", 70, 30)],
    ]


def test_a_job_without_a_family_has_none(admin_client):
    assert "Who called whom" not in admin_client.get(page(make())).content.decode()
