"""Any order of enqueue, commit, claim, give back, crash, finish, rescue and replay, for two keys (Hypothesis).

Runs are taken apart into their statements: a body is begun by one rule and ended by another, so that zombies end theirs
after others were given the job. Each step is one that a process can take; the invariants are the promise.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter

import pytest
from celery import current_app, shared_task
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

from jobs.errors import UniqueTaken
from jobs.idempotency import markers
from jobs.lifecycle import claims, transitions
from jobs.maintenance import rescue
from jobs.models import ENDED, Job, Marker, Node
from tests import tasks
from tests.helpers.harness import claim
from tests.models import Effect, Order

pytestmark = pytest.mark.django_db(transaction=True)

KEYS = st.sampled_from(["a", "b"])
TASKS = st.sampled_from(["marked", "unique"])
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


@shared_task(unique="sole:{key}")
def sole(key):
    Effect.objects.create(key=key)


class Promise(RuleBasedStateMachine):
    """``marked`` jobs leave a marker, ``unique`` ones wait alone; the effect's key is the business key."""

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

    @initialize(calls=st.lists(st.tuples(KEYS, TASKS), min_size=4, max_size=8))
    def begin(self, calls: list[tuple[str, str]]) -> None:
        for key, task in calls:
            self.enqueue(key, task, commits=True)

    @precondition(lambda self: not Node.objects.filter(dead_at=None).exists())
    @rule()
    def start_node(self) -> None:
        self.nodes.append(Node.objects.create(hostname="here", pid=1).pk)

    @rule(key=KEYS, task=TASKS, commits=st.booleans())
    def enqueue(self, key: str, task: str, commits: bool) -> None:
        try:
            with transaction.atomic():
                result = (tasks.marked if task == "marked" else sole).delay(key)
                if not result.existing:
                    Order.objects.create(key=result.id, job=result.id)
                if not commits:
                    raise RolledBack
            if not result.existing:
                self.ids.append(uuid.UUID(result.id))
        except RolledBack:
            if not result.existing:
                assert not Job.objects.filter(pk=result.id).exists()

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

    @rule(data=st.data(), size=st.sampled_from([2, 5]))
    def claim_batch(self, data: st.DataObject, size: int) -> None:
        ready = list(Job.objects.filter(state="ready").order_by("rank", "run_at", "id"))
        node = self.draw(data, self.nodes)
        jobs = claims.Claimer().claim("default", current_app.conf.task_default_queue, node, size)
        is_alive = Node.objects.filter(pk=node, dead_at=None).exists()
        assert [job.pk for job in jobs] == ([job.pk for job in ready][:size] if is_alive else [])
        assert len({job.token for job in jobs}) <= 1
        self.runs += jobs

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """What was claimed together with a run waits again; whoever claimed it may not know yet."""
        begun = self.runs[data.draw(st.integers(0, len(self.runs) - 1))]
        transitions.hand_back_claim("default", begun.node_id, begun.token, begun.pk)
        rest = Job.objects.filter(state="running", token=begun.token).exclude(pk=begun.pk)
        assert not rest.exists()

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        run = self.runs[data.draw(st.integers(0, len(self.runs) - 1))]
        owned = Job.objects.filter(pk=run.pk, state="running", lease=run.lease, token=run.token).exists()
        assert claims.renew(run) == owned
        if not owned:
            self.runs.remove(run)

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
        try:
            with transaction.atomic():
                source = markers.earlier(run, "same") if run.marker_key else None
                if source is None:
                    Effect.objects.create(key=run.args[0], note=f"{run.task}:{run.pk}")
                    done = transitions.succeed(run, str(run.pk), 0.0)
                else:
                    done = transitions.succeed(run, source.result, 0.0, source)
                if not done or not commits:
                    raise RolledBack
        except RolledBack:
            pass

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
        try:
            assert transitions.retry_by_hand(job.pk, "default") == (job.state in ("failed", "cancelled"))
        except UniqueTaken:
            assert job.unique_key is not None

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
        committed = Counter(note.rpartition(":")[2] for note in Effect.objects.values_list("note", flat=True))
        own = Job.objects.filter(state="succeeded", replay_of=None).values_list("pk", flat=True)
        assert committed == Counter(str(pk) for pk in own)

    @invariant()
    def one_effect_per_key(self) -> None:
        marked = Effect.objects.filter(note__startswith="tests.tasks.marked").values_list("key", flat=True)
        assert all(times == 1 for times in Counter(marked).values())
        for job in Job.objects.exclude(replay_of=None):
            assert job.result == str(job.replay_of)

    @invariant()
    def one_waiting_job_per_unique_key(self) -> None:
        waiting = Job.objects.filter(state__in=("scheduled", "ready")).exclude(unique_key=None)
        assert all(times == 1 for times in Counter(waiting.values_list("unique_key", flat=True)).values())

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
        for job in Job.objects.filter(task="tests.tasks.marked", state="succeeded"):
            assert Effect.objects.filter(key=job.args[0], note__startswith=job.task).count() == 1


@pytest.mark.wide
@pytest.mark.timeout(300)
def test_no_order_of_events_breaks_the_promise(own_settings):
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
