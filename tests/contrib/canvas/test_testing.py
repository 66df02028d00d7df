"""How a project tests what follows its jobs: ``run_jobs()``."""

from __future__ import annotations

from celery import chain, chord, shared_task

from jobs.testing import run_jobs
from tests import tasks
from tests.models import Effect


@shared_task
def counts(results, key):
    Effect.objects.create(key=key, note=str(results))


@shared_task
def says_that_it_was_called(request, exc, traceback):
    Effect.objects.create(key="errback", note=repr(exc))


def test_follow_ups_run(case):
    chain(tasks.part.si("a"), tasks.part.si("b")).apply_async()
    chord([tasks.passes.si("c"), tasks.passes.si("d")], counts.s("e")).apply_async()
    run_jobs()
    assert {each.key: each.note for each in Effect.objects.all()} == {"a": "", "b": "", "e": "['c', 'd']"}


def test_errbacks_run(case):
    tasks.fails.apply_async(("a",), link_error=says_that_it_was_called.s())
    assert run_jobs(raises=False).states == {"failed": 1}
    assert [(each.key, each.note) for each in Effect.objects.all()] == [("errback", "LookupError('a')")]
