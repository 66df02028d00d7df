"""Two business keys, in any order of call, claim, crash, end, rescue, retry by hand and cancel (Hypothesis).

The models in ``proof`` decide who owns a job, and have no markers. Here a body is begun by one rule and ended by
another, so that zombies end theirs after others were given the job. Each step is one that a process can take.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from contextlib import suppress

import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jobs.contrib.operations import by_hand
from jobs.idempotency import markers
from jobs.lifecycle import transitions
from jobs.maintenance import rescue
from jobs.models import ENDED, Job, Marker, Node
from tests import tasks
from tests.helpers.harness import claim
from tests.models import Effect, Order

pytestmark = pytest.mark.django_db(transaction=True)

KEYS = st.sampled_from(["a", "b"])
OUTCOMES = (
    "commits",
    "commits",
    "commits",
    "rolls back",
    "dies before the commit",
    "dies after the commit",
    "fails",
    "retries",
    "snoozes",
)


class RolledBack(Exception):
    pass


class Promise(RuleBasedStateMachine):
    """The effect's key is the business key."""

    def __init__(self) -> None:
        super().__init__()
        for model in (Job, Marker, Node, Effect, Order):
            model.objects.all().delete()
        #: Rows as a run claimed them; what a zombie holds stays here.
        self.runs: list[Job] = []
        self.nodes: list[uuid.UUID] = []
        #: All jobs, in the order of their calls: random ids would make each example another one.
        self.ids: list[uuid.UUID] = []
        self.start_node()

    @initialize(calls=st.lists(KEYS, min_size=4, max_size=8))
    def begin(self, calls: list[str]) -> None:
        for key in calls:
            self.enqueue(key, commits=True)

    @precondition(lambda self: not Node.objects.filter(dead_at=None).exists())
    @rule()
    def start_node(self) -> None:
        self.nodes.append(Node.objects.create(hostname="here", pid=1).pk)

    @rule(key=KEYS, commits=st.booleans())
    def enqueue(self, key: str, commits: bool) -> None:
        with suppress(RolledBack), transaction.atomic():
            result = tasks.marked.delay(key)
            Order.objects.create(key=result.id, job=result.id)
            if not commits:
                raise RolledBack
            self.ids.append(uuid.UUID(result.id))

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        """Also by a node that is dead, or a job that ended."""
        ready = [key for key in self.ids if Job.objects.filter(pk=key, state="ready").exists()]
        key = self.draw(data, ready if ready and data.draw(st.booleans()) else self.ids)
        node = self.draw(data, self.nodes)
        before = Job.objects.get(pk=key)
        job = claim(key, node)
        is_alive = Node.objects.filter(pk=node, dead_at=None).exists()
        assert (job is not None) == (before.state == "ready" and is_alive)
        if job is not None:
            assert job.lease == before.lease + 1
            self.runs.append(job)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def end(self, data: st.DataObject, outcome: str) -> None:
        """One of those that believe to run the job, perhaps a zombie."""
        run = self.runs.pop(data.draw(st.integers(0, len(self.runs) - 1)))
        error = transitions.error_entry("ValueError", outcome, attempt=run.lease)
        if outcome == "fails":
            transitions.fail(run, error)
        elif outcome == "retries":
            transitions.retry(run, None, error, {})
        elif outcome == "snoozes":
            transitions.snooze(run, 0, error, 100)
        elif outcome == "dies before the commit":
            self.body(run, commits=False)
        else:
            self.body(run, commits=outcome != "rolls back")

    def draw(self, data: st.DataObject, items: list[uuid.UUID]) -> uuid.UUID:
        return items[data.draw(st.integers(0, len(items) - 1))]

    def body(self, run: Job, commits: bool) -> None:
        with suppress(RolledBack), transaction.atomic():
            source = markers.earlier(run, "same")
            if source is None:
                Effect.objects.create(key=run.args[0], note=str(run.pk))
                done = transitions.succeed(run, str(run.pk), 0.0)
            else:
                done = transitions.succeed(run, source.result, 0.0, source)
            if not done or not commits:
                raise RolledBack

    @rule(data=st.data())
    def bury(self, data: st.DataObject) -> None:
        """A node is declared dead, whether it is or not; its runs go on as zombies."""
        rescue.bury(self.draw(data, self.nodes))

    @rule()
    def rescue(self) -> None:
        rescue.rescue_all("default")
        assert not Job.objects.filter(state="running", node__dead_at__isnull=False).exists()

    @rule()
    def come_due(self) -> None:
        Job.objects.filter(state="scheduled").update(run_at=transitions.now_plus(-1))
        transitions.make_due("default", 100)
        assert not Job.objects.filter(state="scheduled").exists()

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        job = Job.objects.get(pk=self.draw(data, self.ids))
        assert by_hand.retry_by_hand(job.pk, "default") == (job.state in ("failed", "cancelled"))

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        key = self.draw(data, self.ids)
        transitions.cancel(key, "default") or transitions.ask_to_end(key, "default")

    # The promise

    @invariant()
    def a_job_exists_if_and_only_if_its_transaction_committed(self) -> None:
        assert set(Job.objects.values_list("pk", flat=True)) == set(Order.objects.values_list("job", flat=True))

    @invariant()
    def one_effect_per_job_that_succeeded_and_none_for_others(self) -> None:
        committed = Counter(Effect.objects.values_list("note", flat=True))
        own = Job.objects.filter(state="succeeded", replay_of=None).values_list("pk", flat=True)
        assert committed == Counter(str(pk) for pk in own)

    @invariant()
    def one_effect_per_key(self) -> None:
        assert all(times == 1 for times in Counter(Effect.objects.values_list("key", flat=True)).values())
        for job in Job.objects.exclude(replay_of=None):
            assert job.result == str(job.replay_of)

    def teardown(self) -> None:
        """What is left is delivered: every job comes to an end."""
        for node in self.nodes:
            rescue.bury(node)
        self.rescue()
        self.start_node()
        for _ in range(100):
            self.come_due()
            waiting = list(Job.objects.filter(state="ready").values_list("pk", flat=True))
            if not waiting:
                break
            for key in waiting:
                if run := claim(key, self.nodes[-1]):
                    self.body(run, commits=True)
                    transitions.heed(run)
        assert not Job.objects.exclude(state__in=ENDED).exists()
        for name in ("one_effect_per_job_that_succeeded_and_none_for_others", "one_effect_per_key"):
            getattr(self, name)()
        for job in Job.objects.filter(state="succeeded"):
            assert Effect.objects.filter(key=job.args[0]).count() == 1


@pytest.mark.slow
@pytest.mark.wide
@pytest.mark.timeout(300)
def test_no_order_of_steps_makes_two_effects_of_one_key(own_settings):
    run_state_machine_as_test(
        Promise,
        settings=settings(
            max_examples=100 if os.environ.get("JOBS_TEST_MATRIX") == "wide" else 20,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


@pytest.fixture
def own_settings(settings):
    settings.JOBS = {**settings.JOBS, "MAX_NODE_LOSSES": 3}
