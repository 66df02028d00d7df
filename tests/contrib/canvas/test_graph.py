"""What follows what, on the page of a job: a drawing whose boxes are links, with the state in words."""

from __future__ import annotations

import html
import re
import uuid

import pytest
from celery import chain, chord, group

from jobs.contrib.canvas import graph
from jobs.models import Job
from jobs.testing import run_jobs
from tests import tasks
from tests.helpers.admin_list import page
from tests.helpers.rows import make

pytestmark = [pytest.mark.django_db(transaction=True)]


def boxes(client, job):
    """What a screen reader says of each box, whether it is a link, and how many lines there are."""
    text = client.get(page(job)).content.decode().partition('class="job-graph"')[2].partition("</svg>")[0]
    said = [(html.unescape(says), kind == "a") for kind, says in re.findall(r'<(a|g)[^>]* aria-label="([^"]*)"', text)]
    return said, text.count("<path")


def test_a_chain_and_what_is_not_called_yet(viewer):
    chain(tasks.noop.si(), tasks.noop.si(), tasks.noop.si()).apply_async()
    job = Job.objects.get()
    said, lines = boxes(viewer, job)
    assert said == [("noop: ready (this job)", False), *[("noop: not called yet", False)] * 2]
    assert lines == 2
    run_jobs()
    said, lines = boxes(viewer, Job.objects.get(pk=job.pk))
    assert said == [("noop: succeeded (this job)", False), *[("noop: succeeded", True)] * 2]
    assert lines == 2


def test_of_a_long_chain_only_so_many_steps_are_looked_at():
    step = {"task": "shop.tasks.step", "options": {}}
    job = Job(task="shop.tasks.first", state="ready", options={"chain": [step] * 5000})
    found = graph.drawn(job, job, {})
    assert len(found["boxes"]) == graph.MOST
    assert found["more"] == "and 1 more"


def test_the_body_of_a_chord_follows_each_of_its_parts(viewer):
    parent = make("succeeded", task="shop.tasks.nightly")
    body = {"task": "shop.tasks.total", "options": {"task_id": str(uuid.uuid4())}}
    of = {"parent_id": parent.pk, "root": parent.pk}
    for state in ("succeeded", "failed"):
        make(state, task=f"shop.tasks.{state[:4]}", options={"chord": body}, **of)
    said, lines = boxes(viewer, parent)
    assert said == [
        ("nightly: succeeded (this job)", False),
        ("succ: succeeded", True),
        ("fail: failed", True),
        ("total: not called", False),
    ]
    assert lines == 4
    make("succeeded", id=uuid.UUID(body["options"]["task_id"]), task="shop.tasks.total", **of)
    said, lines = boxes(viewer, parent)
    assert said[-1] == ("total: succeeded", True)
    assert lines == 4


def test_a_real_chord_ends_in_its_body(viewer):
    chain(tasks.noop.si(), chord(group(tasks.noop.si(), tasks.noop.si()), tasks.noop.si())).apply_async()
    run_jobs()
    assert {job.state for job in Job.objects.all()} == {"succeeded"}
    said, lines = boxes(viewer, Job.objects.get(parent_id=None))
    assert (len(said), lines) == (4, 4)


def test_many_alike_are_one_box_with_their_counts(viewer):
    parent = make("succeeded", task="shop.tasks.nightly")
    for number in range(30):
        make("failed" if number < 2 else "succeeded", task="shop.tasks.one", parent_id=parent.pk, root=parent.pk)
    make("ready", task="shop.tasks.two", parent_id=parent.pk, root=parent.pk)
    said, lines = boxes(viewer, parent)
    assert said == [
        ("nightly: succeeded (this job)", False),
        ("30 x one: 2 failed, 28 succeeded", True),
        ("two: ready", True),
    ]
    assert lines == 2
    # The one whose page it is stands alone.
    said, _ = boxes(viewer, Job.objects.filter(task="shop.tasks.one", state="failed").first())
    assert ("one: failed (this job)", False) in said
    assert ("29 x one: 1 failed, 28 succeeded", True) in said


def test_no_more_are_drawn_than_can_be_read(viewer):
    parent = make("succeeded", task="shop.tasks.nightly")
    for number in range(graph.MOST + 20):
        make("succeeded", task=f"shop.tasks.task{number}", parent_id=parent.pk, root=parent.pk)
    said, _ = boxes(viewer, parent)
    assert len(said) == graph.MOST
    assert "and 1 more" in viewer.get(page(parent)).content.decode()


@pytest.mark.parametrize("options", [[], {"chain": 5}, {"chain": ["x"]}, {"chord": 5}, {"chord": {"options": 5}}])
def test_a_row_that_somebody_has_edited_is_shown(viewer, options):
    job = make("ready")
    Job.objects.filter(pk=job.pk).update(options=options)
    assert viewer.get(page(job)).status_code == 200


def test_what_goes_round_in_a_circle_is_drawn_all_the_same():
    one, two, three = (make("succeeded", task=f"a.{name}") for name in ("one", "two", "three"))
    for job, other in ((one, two), (two, one)):
        job.options = {"chord": {"task": other.task, "options": {"task_id": str(other.pk)}}}
    found = graph.drawn(one, one, {one.pk: [two, three], two.pk: [one]})
    assert len(found["boxes"]) == 3
