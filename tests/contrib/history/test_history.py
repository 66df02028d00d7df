"""History beside the queue: what ended is in the partition of its day, and everything still finds it."""

from __future__ import annotations

import datetime
import uuid
from contextlib import contextmanager
from importlib import import_module

import pytest
from celery import current_app
from django.db import IntegrityError, connection, transaction

from jobs import store
from jobs.contrib.checks import system as checks
from jobs.contrib.history import days
from jobs.contrib.history import store as partitions
from jobs.contrib.limits import claims as limited
from jobs.contrib.limits.limits import Limits
from jobs.contrib.limits.rates import limit_of
from jobs.contrib.messages import receiving
from jobs.contrib.operations import by_hand
from jobs.contrib.operator import problems, status
from jobs.contrib.operator.store import HEADS
from jobs.contrib.pruning import prune
from jobs.contrib.pruning.prune import Prune
from jobs.contrib.unknown_tasks import parking
from jobs.contrib.waking import waking
from jobs.lifecycle import claims, transitions
from jobs.models import Action, Job, Marker, RateLimiter
from jobs.store import databases, postgresql
from tests.helpers.concurrency import Elsewhere, open_transaction, somebody_waits
from tests.helpers.cuts import cut_everywhere
from tests.helpers.plans import plan
from tests.helpers.rows import make, make_node
from tests.helpers.servers import wait_for
from tests.settings import JOBS
from tests.tasks import effect, noop, summary

pytestmark = [
    pytest.mark.database,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        connection.vendor != "postgresql" or not JOBS.get("HISTORY_BY_DAY"),
        reason="""needs PostgreSQL and JOBS_TEST_SETTINGS='{"HISTORY_BY_DAY": true}'""",
    ),
]

DAY = 86400.0
RETENTION = 3 * DAY


@pytest.fixture(autouse=True)
def _kept(settings):
    """The days are afterwards those that ``migrate`` makes: each is emptied after each test."""
    settings.JOBS = {**settings.JOBS, "RETENTION": RETENTION}
    before = partitions.days("default")
    days._again_at.clear()
    yield
    with connection.cursor() as cursor:
        for name in {*partitions.days("default").values()} - {*before.values()}:
            cursor.execute(f"DROP TABLE {name}")
    for day in before:
        made(day)


@pytest.fixture
def old_day():
    """A day whose jobs are past their retention, with a partition."""
    return made((databases.clock("default") - datetime.timedelta(seconds=RETENTION + 2 * DAY)).date())


def made(day: datetime.date) -> datetime.date:
    """It is given up where somebody has a lock, such as autovacuum."""
    wait_for(lambda: partitions.make_day("default", day) or day in partitions.days("default"), 30, "the day is made")
    return day


def ended_on(day: datetime.date, number: int, state: str = "succeeded", **more) -> list[Job]:
    noon = partitions.bounds(day)[0] + datetime.timedelta(hours=12)
    age = (databases.clock("default") - noon).total_seconds()
    return [make(state, age=age + n, **more) for n in range(number)]


def place(job: Job) -> str:
    """The table that has the job's row."""
    [[name]] = databases.ask("default", "SELECT tableoid::regclass::text FROM jobs_job WHERE id = %s", job.pk)
    return name


def partition_of(day: datetime.date) -> str:
    return f"jobs_job_{day:%Y%m%d}"


def today() -> str:
    return partition_of(databases.clock("default").date())


def run(job: Job) -> Job:
    [claimed] = claims.Claimer().claim("default", job.queue, make_node().pk, 1)
    assert claimed.pk == job.pk
    return claimed


# Where a job is


def test_a_job_that_ends_moves_to_its_day_and_one_that_fails_beside_it():
    job = make("ready")
    assert place(job) == partitions.LIVE
    claimed = run(job)
    assert place(job) == partitions.LIVE
    with transaction.atomic():
        assert transitions.succeed(claimed, None, 0.1)
    assert place(job) == today()
    assert Job.objects.get(pk=job.pk).state == "succeeded"

    failed = run(make("ready"))
    assert transitions.fail(failed, transitions.error_entry("ValueError", "no"))
    assert place(failed) == partitions.FAILED


def test_a_retry_brings_a_job_back_under_its_id():
    for state in ("failed", "cancelled"):
        job = make(state)
        assert by_hand.retry_by_hand(job.pk, "default")
        assert place(job) == partitions.LIVE
        assert run(job).state == "running"


def test_a_job_whose_day_has_no_partition_ends_in_the_rest():
    job = run(make("ready", created_at=databases.clock("default") - datetime.timedelta(days=400)))
    with transaction.atomic():
        assert transitions.succeed(job, None, 0.1)
    assert place(job) == partitions.REST
    assert Job.objects.get(pk=job.pk).state == "succeeded"


def test_an_id_of_history_is_not_taken_again():
    for job in (make("succeeded"), make("failed")):
        with pytest.raises(IntegrityError):
            noop.apply_async(task_id=str(job.pk))
        with pytest.raises(IntegrityError):
            effect.apply_async(("x",), task_id=str(job.pk), countdown=60)
    assert Job.objects.count() == 2


def test_a_message_that_comes_again_after_its_job_ended_is_no_new_job():
    request = current_app.amqp.as_task_v2(str(uuid.uuid4()), "tests.tasks.noop").headers
    context = current_app.tasks["tests.tasks.noop"].request_stack.top or None
    assert context is None
    from celery.app.task import Context

    def receive() -> None:
        receiving.insert("tests.tasks.noop", Context(request), [], {})

    receive()
    receive()
    [job] = Job.objects.all()
    claimed = run(job)
    with transaction.atomic():
        assert transitions.succeed(claimed, None, 0.1)
    receive()
    assert [each.state for each in Job.objects.all()] == ["succeeded"]


# A row for which somebody waits moves


def succeed(job: Job) -> bool:
    with transaction.atomic():
        return transitions.succeed(job, None, 0.1)


def meanwhile(first, second):
    """What the second does, which waits for the first's transaction until that commits."""
    with open_transaction(first):
        other = Elsewhere(second)
        wait_for(somebody_waits, 10, "it waits for the row")
    return other.result()


def test_who_waits_for_a_row_that_moves_looks_again():
    job = make("ready")
    cancel = lambda: transitions.cancel(job.pk, "default")  # noqa: E731
    assert meanwhile(cancel, cancel) is False

    retry = lambda: by_hand.retry_by_hand(job.pk, "default")  # noqa: E731
    assert meanwhile(retry, retry) is False
    assert Job.objects.get(pk=job.pk).state == "ready"

    later = lambda: by_hand.redirect(job.pk, "default", {"queue": "mail"})  # noqa: E731
    assert meanwhile(cancel, later) is False

    delete = lambda: prune.delete([job.pk], "default")  # noqa: E731
    assert meanwhile(retry, delete) == 0


def test_a_zombie_that_waits_for_its_successors_completion_rolls_back():
    job = run(make("ready"))

    found = meanwhile(lambda: succeed(job), lambda: succeed(job))
    assert found is False or databases.is_conflict(found)
    assert Job.objects.get(pk=job.pk).state == "succeeded"


@contextmanager
def gate():
    """Claims wait for the end of the block, after their snapshots and before their first rows."""
    with databases.apart("default") as keeper, keeper.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(42)")
        cursor.execute("CREATE SCHEMA gate")
        cursor.execute(
            "CREATE FUNCTION gate.paused() RETURNS SETOF jobs_pause LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN QUERY SELECT * FROM public.jobs_pause; END'"
        )
        cursor.execute("CREATE VIEW gate.jobs_pause AS SELECT * FROM gate.paused()")
        try:
            yield
        finally:
            cursor.execute("SELECT pg_advisory_unlock(42)")
            wait_for(lambda: not somebody_waits(), 10, "the claims go on")
            cursor.execute("DROP SCHEMA gate CASCADE")


def test_a_claim_goes_on_beside_a_job_that_is_cancelled_at_this_moment():
    """PostgreSQL refuses to lock a row that moved since the statement began, also where it skips locked ones."""
    gone, left = make("ready"), make("ready")

    def claim() -> list[Job]:
        databases.ask("default", "SELECT set_config('search_path', 'gate, public', false)")
        return claims.Claimer().claim("default", "celery", node.pk, 10)

    node = make_node()
    with gate():
        other = Elsewhere(claim)
        wait_for(somebody_waits, 10, "the claim has begun")
        assert transitions.cancel(gone.pk, "default")
    assert other.result() == [left]


def test_who_wakes_a_job_that_is_cancelled_at_this_moment_goes_on():
    """It may be in somebody's transaction, which would be lost."""
    job = make("scheduled", run_at=transitions.NEVER, waits_for="signal:a")

    def wake() -> bool:
        with transaction.atomic():
            is_woken = waking.wake("signal:a", "default")
            Marker.objects.create(key="k", kind="task")
            return is_woken

    assert meanwhile(lambda: transitions.cancel(job.pk, "default"), wake) is False
    assert Marker.objects.exists()


@contextmanager
def moved_once():
    """The server says of the first statement that skips locked rows that a row has moved since it began."""
    said = []

    def execute(run, sql, *more):
        if "SKIP LOCKED" in sql and not said:
            said.append(sql)
            run("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$", None, *more[1:])
        return run(sql, *more)

    with connection.execute_wrapper(execute):
        yield
    assert said


def test_who_skips_locked_rows_looks_again_when_one_of_them_moved():
    late, parked, odd = make("scheduled", age=60), make("ready", task="tests.gone"), make("ready", task="tests.gone")
    with moved_once():
        assert transitions.make_due("default", 10) == ["celery"]
    Job.objects.filter(pk=late.pk).delete()
    with moved_once():
        assert parking.postpone(run(parked), 10) == 2
    with moved_once():
        assert parking.let_go("default", ["tests.gone"], ["celery"], 10) == ["celery"] * 2
    assert Job.objects.get(pk=odd.pk).state == "ready"


def test_limits_look_again_when_a_job_moved(declare):
    task = declare(concurrency=5, limit_key="{user_id}")
    known = Limits({task.name: limit_of(5, None)}, {})
    job = make("ready", task=task.name, args=[5], kwargs={})
    with moved_once():
        assert limited._mark("default", [job], current_app) == 1
    job.refresh_from_db()
    assert job.limit_key.endswith(":5")
    Job.objects.filter(pk=job.pk).update(held=True)
    limiter = RateLimiter.objects.create(pk=job.limit_key, look_at=0.0)
    with moved_once():
        assert [queue for queue, _ in limited._let_in("default", limiter, known)] == ["celery"]


def test_a_call_whose_unique_key_is_freed_by_an_end_at_this_moment_goes_on():
    job = run(make("ready", unique_key="2026-11-26", unique_until="finished"))
    over = databases.clock("default") - datetime.timedelta(seconds=1)
    Job.objects.filter(pk=job.pk).update(unique_expires_at=over)

    other = meanwhile(lambda: succeed(job), lambda: summary.delay("2026-11-26").id)
    assert Job.objects.get(pk=other).state == "ready"


def test_an_id_is_not_taken_again_while_its_job_ends():
    job = run(make("ready"))
    frozen = run(make("ready"))

    def again() -> None:
        noop.apply_async(task_id=str(job.pk))

    assert isinstance(meanwhile(lambda: succeed(job), again), IntegrityError)

    def anew() -> str:
        signature = noop.s().set(task_id=str(frozen.pk))
        signature.freeze()
        signature.apply_async()
        return Job.objects.get(state="ready").task_id

    # The signature was called before: what it calls now has an id of its own, and its caller sees the old one.
    assert meanwhile(lambda: succeed(frozen), anew) == str(frozen.pk)
    assert Job.objects.filter(pk=frozen.pk).count() == 1


def test_of_two_that_end_the_same_jobs_the_slower_one_takes_no_database_for_away(caplog):
    job = make("ready")

    def expire(alias: str) -> int:
        with transaction.atomic():
            return Job.objects.filter(pk=job.pk, state="ready").update(state="scheduled")

    assert meanwhile(lambda: transitions.cancel(job.pk, "default"), lambda: databases.everywhere(expire)) == 0
    assert "left for the next round" in caplog.text
    assert "away" not in caplog.text


# Plans


def test_hot_statements_plan_the_partition_of_what_lives_alone(old_day):
    running, node = run(make("ready")), make_node()
    for _ in range(3):
        make("ready")
    given = ("NULL", "0.01", f"'{running.pk}'", str(running.lease), str(running.token))
    claim = postgresql.claim_sql("celery", 10, False, False)
    values = {"node": node.pk, "token": 1, "backend": 1}
    renew = {"token": 2, "id": running.pk, "before": running.token}
    hot = {
        "claim": (claim, values),
        "renew": (postgresql.RENEW, renew),
        "succeed": (postgresql.SUCCEED.format(*given), None),
        "look": (f"SELECT {postgresql.base.READY}", ["celery", "celery"]),
        "heads": (HEADS, None),
    }
    for name, (sql, params) in hot.items():
        text = plan(sql, params)
        assert partitions.LIVE in text, f"{name}\n{text}"
        for other in (partitions.REST, partitions.FAILED, partition_of(old_day), today()):
            assert other not in text, f"{name}\n{text}"


def test_a_look_up_by_id_reads_one_day(old_day):
    job = make("succeeded")
    text = plan(f"SELECT * FROM jobs_job WHERE id = '{job.pk}'")
    assert today() in text, text
    assert partition_of(old_day) not in text, text


# Autovacuum


def storage() -> dict[str, list[str]]:
    """The storage parameters of each partition that has rows, by its name."""
    sql = """
    SELECT relid::regclass::text, coalesce(reloptions, '{}')
    FROM pg_partition_tree(to_regclass('jobs_job')) JOIN pg_class ON pg_class.oid = relid WHERE isleaf
    """
    return {name: sorted(options) for name, options in databases.ask("default", sql)}


def test_autovacuum_comes_to_each_partition_as_it_comes_to_the_queue(old_day):
    migration = import_module("jobs.migrations.0001_initial")
    wanted = sorted(f"{name}={value}" for name, value in migration.AUTOVACUUM.items())
    found = storage()
    assert {partitions.LIVE, partitions.FAILED, partitions.REST, partition_of(old_day), today()} <= set(found)
    assert all(options == wanted for options in found.values()), found


def test_what_a_project_set_for_the_table_holds_for_each_partition(ordinary_table):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE other.jobs_job SET (autovacuum_vacuum_scale_factor = 0.05)")
    assert partitions.divide("default")
    assert partitions.make_days("default", 2, databases.clock("default")) == 3
    found = storage()
    assert len(found) == 6
    assert all(options == ["autovacuum_vacuum_scale_factor=0.05"] for options in found.values()), found


# Days


def test_days_are_made_ahead_once_whoever_makes_them():
    ahead = databases.clock("default").date() + datetime.timedelta(days=3)
    wait_for(lambda: partitions.make_days("default", 3, databases.clock("default")) == 0, 30, "all are made")
    assert ahead in partitions.days("default")
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {partition_of(ahead)}")
    with open_transaction(lambda: partitions.make_day("default", ahead)):
        other = Elsewhere(lambda: partitions.make_day("default", ahead))
        assert other.result() is False
    assert ahead in partitions.days("default")


def test_a_week_is_made_ahead():
    now = databases.clock("default")
    week = [now.date() + datetime.timedelta(days=number) for number in range(8)]
    wait_for(lambda: days.prune("default", 1.0) == 0 and set(week) <= {*partitions.days("default")}, 30, "all are made")
    assert max(partitions.days("default")) == week[-1]


def test_a_problem_is_noted_while_fewer_than_two_days_are_left():
    make_node()
    now = databases.clock("default")
    [*_, second] = [made(now.date() + datetime.timedelta(days=number)) for number in (1, 2)]

    def noted() -> list[str]:
        return [problem.text for problem in problems.of(status.gather(live=True)) if problem.kind == "history"]

    assert noted() == []
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {partition_of(second)}")
    assert noted() == [f"history has no partition for {second}"]


def test_a_day_that_is_missing_is_a_problem_until_it_is_made():
    make_node()
    day = databases.clock("default").date() + datetime.timedelta(days=1)
    made(day)

    def noted() -> list[str]:
        return [problem.kind for problem in problems.of(status.gather(live=True))]

    assert "history" not in noted()
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {partition_of(day)}")
    assert "history" in noted()
    wait_for(lambda: days.prune("default", 1.0) == 0 and "history" not in noted(), 30, "it is made")


def test_a_role_that_may_not_make_days_is_named(old_day):
    ahead = databases.clock("default").date() + datetime.timedelta(days=40)
    gone = ended_on(old_day, 2)
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE jobs_test_worker; GRANT ALL ON ALL TABLES IN SCHEMA public TO jobs_test_worker")
        assert checks.ask_databases(databases=["default"]) == []
        cursor.execute("SET ROLE jobs_test_worker")
        try:
            [message] = checks.ask_databases(databases=["default"])
            assert message.id == "jobs.W038"
            assert "jobs_test_worker" in message.msg
            assert not partitions.make_day("default", ahead)
            assert days.prune("default", 1.0) == 0
            assert prune.delete([job.pk for job in gone], "default") == 2
        finally:
            cursor.execute("RESET ROLE; DROP OWNED BY jobs_test_worker; DROP ROLE jobs_test_worker")


def test_a_day_past_its_retention_is_dropped_and_what_is_needed_goes_to_the_rest(old_day):
    gone, [needed], [young] = ended_on(old_day, 20), ended_on(old_day, 1), ended_on(old_day, 1, state="cancelled")
    Job.objects.filter(pk=young.pk).update(finished_at=databases.clock("default"))
    [failed] = ended_on(old_day, 1, state="failed")
    Marker.objects.create(key="k", kind="task", job=needed.pk)
    assert {place(job) for job in (*gone, needed, young)} == {partition_of(old_day)}
    Prune().run_once()
    assert old_day not in partitions.days("default")
    assert set(Job.objects.all()) == {needed, young, failed}
    assert place(needed) == place(young) == partitions.REST


def test_a_day_that_somebody_reads_is_dropped_later(old_day):
    job = ended_on(old_day, 1)[0]
    with open_transaction(lambda: Job.objects.get(pk=job.pk)):
        assert days.prune("default", 1.0) == 0
        assert old_day in partitions.days("default")
    assert days.prune("default", 1.0) == 1
    assert not Job.objects.exists()


def test_a_day_of_which_much_is_needed_is_pruned_row_by_row(old_day, monkeypatch):
    monkeypatch.setattr(days, "KEPT", 1)
    jobs = ended_on(old_day, 5)
    for job in jobs[:2]:
        Marker.objects.create(key=str(job.pk), kind="task", job=job.pk)
    Prune().run_once()
    assert old_day in partitions.days("default")
    assert set(Job.objects.all()) == set(jobs[:2])


def test_a_day_of_which_much_is_needed_is_not_read_at_each_round(old_day, monkeypatch):
    monkeypatch.setattr(days, "KEPT", 1)
    for job in ended_on(old_day, 2):
        Marker.objects.create(key=str(job.pk), kind="task", job=job.pk)
    looks = []
    with connection.execute_wrapper(lambda run, sql, *more: looks.append(sql) or run(sql, *more)):
        for _ in range(3):
            days.prune("default", 10.0)
        assert len([sql for sql in looks if "jobs_marker" in sql]) == 1
        days._again_at.clear()
        days.prune("default", 10.0)
        assert len([sql for sql in looks if "jobs_marker" in sql]) == 2


def test_a_day_that_is_not_over_is_left_whole():
    """A job may stay a day longer, and goes with its day: it costs no DELETE."""
    job = make("succeeded", age=RETENTION + DAY / 2)
    Prune().run_once()
    assert Job.objects.filter(pk=job.pk).exists()


# The table itself


@pytest.fixture
def ordinary_table():
    """As of a project that comes from an earlier release."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET search_path = other, public")
        cursor.execute("CREATE SCHEMA other")
        cursor.execute(f"CREATE TABLE other.jobs_job (LIKE {partitions.LIVE} INCLUDING ALL)")
        # Another schema, of the same store.
        store.of("default").divided = (False, 0.0)
        assert not store.of("default").is_divided
        yield [make(state) for state in ("ready", "running", "scheduled", "failed", "cancelled", "succeeded")]
        transaction.set_rollback(True)
    store.of("default").divided = (False, 0.0)


def test_an_ordinary_table_is_divided_with_its_rows(ordinary_table):
    jobs = ordinary_table
    assert partitions.divide("default")
    assert partitions.make_days("default", 2, databases.clock("default")) == 3
    assert [place(job) for job in jobs] == [partitions.LIVE] * 3 + [partitions.FAILED] + [today()] * 2
    assert not partitions.divide("default")
    assert store.of("default").is_divided


def test_where_the_table_was_unapplied_no_days_are_made(settings):
    """``migrate jobs zero``, whose checks have found the days that it drops."""
    settings.JOBS = {**settings.JOBS, "HISTORY_BY_DAY": True}
    assert store.of("default").is_divided
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA other")
            cursor.execute("SET LOCAL search_path = other")
            days.complete("default")
            transaction.set_rollback(True)
    finally:
        store.of("default").divided = (False, 0.0)


def test_a_long_history_stays_where_it_is_and_what_ends_later_does_not(ordinary_table, monkeypatch):
    """The server reads none of it while it has the table locked: a constraint proves what it wants to know."""
    monkeypatch.setattr(partitions, "MOST", 1)
    monkeypatch.setattr(partitions, "SOON", datetime.timedelta(seconds=60))
    said: list[str] = []
    connection.connection.add_notice_handler(lambda notice: said.append(notice.message_primary))
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL client_min_messages = debug1")
        assert partitions.divide("default")
        cursor.execute("SET LOCAL client_min_messages = notice")
    assert any(partitions.LIVE in each and "implied by existing" in each for each in said), said
    assert {place(job) for job in ordinary_table} == {partitions.LIVE}
    partitions.make_days("default", 2, databases.clock("default"))
    job = run(ordinary_table[0])
    with transaction.atomic():
        assert transitions.succeed(job, None, 0.1)
    assert place(job) == partitions.LIVE
    later = make("succeeded", age=-120)
    assert place(later) == today()
    assert not databases.ask("default", "SELECT 1 FROM pg_constraint WHERE conname = 'jobs_job_earlier'")


def test_what_stays_where_it_lived_keeps_its_history_when_its_day_is_dropped(ordinary_table, monkeypatch):
    monkeypatch.setattr(partitions, "MOST", 1)
    day = (databases.clock("default") - datetime.timedelta(seconds=RETENTION + 2 * DAY)).date()
    [job] = ended_on(day, 1)
    Action.objects.create(job=job.pk, what="retry", by="x")
    assert partitions.divide("default")
    assert partitions.make_day("default", day)
    assert place(job) == partitions.LIVE
    assert days.prune("default", 10.0) == 0
    assert day not in partitions.days("default")
    assert Job.objects.filter(pk=job.pk).exists()
    assert Action.objects.exists()


def test_one_divides_a_table_at_a_time_also_where_each_statement_has_another_session():
    """As behind PgBouncer: a lock of a session would stay with whoever has it next."""
    with partitions._alone("default") as is_first:
        databases.drop("default")
        with partitions._alone("default") as is_second:
            assert (is_first, is_second) == (True, False)
    with partitions._alone("default") as is_third:
        assert is_third


def test_a_server_that_ends_idle_transactions_does_not_end_that_of_who_divides():
    """It stands still while a large table is validated."""
    setting = f'ALTER DATABASE "{connection.settings_dict["NAME"]}" {{}} idle_in_transaction_session_timeout'
    with connection.cursor() as cursor:
        cursor.execute(setting.format("SET") + " = '50ms'")
    try:
        with partitions._alone("default") as is_first:
            databases.ask("default", "SELECT pg_sleep(0.3)")
            with partitions._alone("default") as is_second:
                assert (is_first, is_second) == (True, False)
    finally:
        with connection.cursor() as cursor:
            cursor.execute(setting.format("RESET"))


# The server ends the session before each statement, and before each COMMIT


def whole() -> list[tuple[uuid.UUID, str]]:
    return sorted(databases.ask("default", "SELECT id, state FROM jobs_job"))


@pytest.mark.parametrize(
    ("before", "after", "action"),
    [
        ("ready", "cancelled", lambda job: transitions.cancel(job.pk, "default")),
        ("failed", "ready", lambda job: by_hand.retry_by_hand(job.pk, "default")),
        ("running", "succeeded", lambda job: [succeed(Job.objects.get(pk=job.pk))]),
        ("running", "failed", lambda job: transitions.fail(job, transitions.error_entry("ValueError", "no"))),
    ],
)
def test_a_move_happens_once_or_not_at_all_wherever_its_session_ends(before, after, action):
    job = make(before)
    found = []
    for _ in cut_everywhere(lambda: action(job)):
        found.append(whole())
        assert found[-1] in ([(job.pk, before)], [(job.pk, after)])
    assert len(found) >= 2
    assert found[-1] == [(job.pk, after)]


def test_days_are_dropped_and_made_whole_wherever_the_session_ends(old_day):
    ended_on(old_day, 5)
    [needed], [failed] = ended_on(old_day, 1), ended_on(old_day, 1, state="failed")
    Marker.objects.create(key="k", kind="task", job=needed.pk)
    before, name = whole(), partition_of(old_day)
    for _ in cut_everywhere(lambda: days.prune("default", 1.0)):
        assert whole() in (before, sorted([(needed.pk, "succeeded"), (failed.pk, "failed")]))
    assert place(needed) == partitions.REST
    for _ in cut_everywhere(lambda: partitions.make_day("default", old_day)):
        assert len(whole()) == 2
    assert place(needed) == name


@pytest.mark.slow
@pytest.mark.parametrize("most", [partitions.MOST, 1], ids=["few", "many"])
def test_a_table_is_divided_whole_wherever_the_session_ends(monkeypatch, most):
    monkeypatch.setattr(partitions, "MOST", most)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA other CREATE TABLE jobs_job (LIKE public.{partitions.LIVE} INCLUDING ALL)")
    try:
        with transaction.atomic():
            databases.ask("default", "SELECT set_config('search_path', 'other, public', true)")
            jobs = [make(state) for state in ("ready", "running", "failed", "succeeded")]
            before = whole()

        def divide() -> None:
            # As a process that has just begun, in another schema: it remembers nothing.
            store.of("default").divided = (False, 0.0)
            databases.ask("default", "SELECT set_config('search_path', 'other, public', false)")
            assert partitions.divide("default") or store.of("default").is_divided

        for _ in cut_everywhere(divide):
            with transaction.atomic():
                databases.ask("default", "SELECT set_config('search_path', 'other, public', true)")
                assert whole() == before
                transitions.cancel(jobs[0].pk, "default")
                transaction.set_rollback(True)
        with transaction.atomic():
            databases.ask("default", "SELECT set_config('search_path', 'other, public', true)")
            assert len(store.of("default").parts("jobs_job")) > 1
            partitions.mend("default")
            left = "SELECT 1 FROM pg_constraint WHERE conname = 'jobs_job_earlier'"
            assert not databases.ask("default", left)
    finally:
        store.of("default").divided = (False, 0.0)
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA other CASCADE")
