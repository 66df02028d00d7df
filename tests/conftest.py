from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest
from celery import _state, current_app
from django.conf import settings
from django.db import connection, connections, transaction
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.utils import load_backend
from django.test import TransactionTestCase
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from kombu import pools
from xdist.scheduler import LoadScopeScheduling

from jobs.conf import celery_settings, syncpoints
from jobs.lifecycle.worker_state import worker_state
from jobs.models import tables
from jobs.store.databases import SideDatabase
from tests.helpers import servers

FAULTS = Path(__file__).parent / "faults"

# The machine may be busy with other things.
hypothesis_settings.register_profile("jobs", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("jobs")


def pytest_addoption(parser) -> None:
    parser.addoption(
        "--faults",
        choices=("quick", "rotate", "all", "bounds", "soak"),
        help="also run tests/faults: the quick ones, each in one cell, each in every cell, the bounds with default "
        "clocks, or hours of all features (default: not at all, rotate if tests/faults is named)",
    )
    parser.addoption("--screenshots", metavar="DIRECTORY", help="where tests/browser leaves the pictures of docs/")


def named(config) -> list[Path]:
    """The files and directories of the command line."""
    return [Path(config.invocation_params.dir, arg.partition("::")[0]).resolve() for arg in config.args]


def faults_mode(config) -> str | None:
    is_named = any(FAULTS in (path, *path.parents) for path in named(config))
    return config.option.faults or ("rotate" if is_named else None)


#: Tests of real workers mostly wait: with this many at a time two cores are busy.
PROCESSES = 4


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config) -> None:
    """All tests run side by side, and a file, or what a debugger looks at, in this process, unless -n says otherwise.

    Each process has databases, servers and files of its own; only a broker that is given is one for all. Of faults two
    run at a time, and those of the bounds alone.
    """
    option = config.option
    # Nor in the processes that xdist starts, which would start their own.
    if hasattr(config, "workerinput") or getattr(option, "numprocesses", 0) is not None:
        return
    is_whole = named(config) == [FAULTS.parent] and "CELERY_BROKER_URL" not in os.environ
    if faults_mode(config) in ("quick", "rotate", "all"):
        option.numprocesses = 2
    elif is_whole and faults_mode(config) is None and not (option.usepdb or option.collectonly):
        option.numprocesses, option.dist, option.loadscopereorder = PROCESSES, "loadgroup", False


def pytest_ignore_collect(collection_path, config) -> bool | None:
    """Faults take their time: only where they are asked for."""
    return True if collection_path == FAULTS and faults_mode(config) is None else None


def _sendable(value):
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _sendable(each) for key, each in value.items()}
    return [_sendable(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable():
    """Some tests log text that is none: lone surrogates, which no process can tell another."""
    return _sendable((yield))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session) -> None:
    """What is killed leaves its files behind: they go with the run that made them, unless it failed."""
    if not hasattr(session.config, "workerinput"):
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="jobs-run-")
        os.chmod(tempfile.tempdir, 0o755)  # PostgreSQL refuses to be root, and is nobody here
        if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
            # Without it each worker that a test starts compiles all modules again: a third of its processor time.
            os.environ["PYTHONPYCACHEPREFIX"] = f"{tempfile.tempdir}/pycache"


def pytest_sessionfinish(session) -> None:
    for server in _running.values():
        server.stop()
    if not hasattr(session.config, "workerinput") and not session.testsfailed:
        atexit.register(shutil.rmtree, tempfile.gettempdir(), ignore_errors=True)
    name = str(settings.DATABASES["default"].get("TEST", {}).get("NAME") or "")
    if "/jobs-tests-" in name:
        shutil.rmtree(os.path.dirname(name), ignore_errors=True)


#: What shares something dear stays in one process: a part of each test's id.
TOGETHER = (
    "tests/browser/",
    "rabbitmq",
    "tests/acceptance/test_strangers.py",
    "tests/celery_suite/",
    "tests/products/pretix/",
    "tests/products/weblate/",
)


#: Each takes longer than all else that one process is given.
CELLS = "tests/acceptance/test_matrix.py"

#: Each takes minutes: one that began last would keep the others waiting.
LONG = (
    "tests/celery_suite/",
    "::test_kills_neither_lose_nor_double_a_tick",
    "::test_the_core_passes_its_tests_without[all]",
    "::test_a_dry_run_makes_all_that_is_released",
    "::test_without_the_lock_it_is_found",
    "tests/acceptance/test_strangers.py",
)


def group_of(nodeid: str) -> str:
    # Two long cells in a row would take longer than one more RabbitMQ.
    return nodeid if nodeid.startswith(CELLS) else next((each for each in TOGETHER if each in nodeid), nodeid)


class Grouped(LoadScopeScheduling):
    """As ``--dist loadgroup``, whose marks do not reach the processes if the option is set here."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log) -> Grouped | None:
    return Grouped(config, log) if config.option.dist == "loadgroup" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items) -> Iterator[None]:
    """What takes long begins first: the cells of the matrix, then what takes minutes, then what stays together."""
    yield

    def rank(item) -> tuple[bool, bool, bool]:
        is_long = any(each in item.nodeid for each in LONG)
        return not item.nodeid.startswith(CELLS), not is_long, group_of(item.nodeid) == item.nodeid

    # After all others, of which one shuffles.
    items.sort(key=rank)


def not_installed(what: str) -> NoReturn:
    """Where everything has to be tried it is an error that something is missing; elsewhere the test is skipped."""
    if os.environ.get("JOBS_TEST_REQUIRE_SERVERS"):
        raise RuntimeError(f"not installed: {what}")
    pytest.skip(f"not installed: {what}")


#: Rows of a table that MySQL truncates: it deletes 100,000 one by one for 15 seconds, and few sooner than it truncates.
MANY = 5000

#: What migrations filled.
_KEPT = {"django_migrations", "django_content_type", "auth_permission"}


def _empty(case: TransactionTestCase) -> None:
    """Django's flush touches all tables, and makes all permissions anew: that takes longer than most tests."""
    for alias in case._databases_names(include_mirrors=False):  # type: ignore[attr-defined]
        tables = connections[alias].introspection.django_table_names(only_existing=True, include_views=False)
        ours = sorted(set(tables) - _KEPT)
        found = "UNION ALL".join(f" SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {name}) " for name in ours)
        with connections[alias].cursor() as cursor:
            cursor.execute(found)
            if (full := [name for [name] in cursor.fetchall()]) and connections[alias].vendor == "postgresql":
                cursor.execute(f"TRUNCATE {', '.join(full)} CASCADE")
        if full and connections[alias].vendor != "postgresql":
            # MySQL checks a foreign key at each statement, not at the COMMIT.
            unchecked = connections[alias].constraint_checks_disabled()
            with unchecked, transaction.atomic(using=alias), connections[alias].cursor() as cursor:
                for name in full:
                    is_mysql = connections[alias].vendor == "mysql"
                    is_long = is_mysql and cursor.execute(f"SELECT 1 FROM {name} LIMIT 1 OFFSET {MANY}")
                    cursor.execute(f"TRUNCATE {name}" if is_long else f"DELETE FROM {name}")


TransactionTestCase._fixture_teardown = _empty  # type: ignore[method-assign]

_running: dict[tuple[type, str], servers.Server] = {}


def server(kind: type, user: str = "these tests") -> servers.Server:
    """This process's server of a kind, started when the first test asks for it."""
    if (kind, user) not in _running:
        try:
            _running[kind, user] = kind()
        except servers.Missing as exc:
            not_installed(str(exc))
    return _running[kind, user]


@pytest.fixture
def node():
    """This process is a node: ``harness.deliver`` runs jobs in it."""
    worker_state.node = uuid.uuid4()
    worker_state.wipe()
    from jobs.models import Node

    return Node.objects.create(pk=worker_state.node, hostname="here", pid=1)


@pytest.fixture
def second(tmp_path, settings, transactional_db):
    """Another database that jobs live in, on SQLite."""
    options = {"transaction_mode": "IMMEDIATE", "timeout": 20}
    template = {**connections.settings["default"], "ENGINE": "django.db.backends.sqlite3", "OPTIONS": options}
    connections.settings["second"] = {**template, "NAME": str(tmp_path / "second.sqlite3")}
    # Django's tests refuse to open a database that they did not make, unless it goes by this name.
    backend = load_backend("django.db.backends.sqlite3")
    wrapper = backend.DatabaseWrapper(connections.settings["second"], NO_DB_ALIAS)
    connections["second"] = connections[NO_DB_ALIAS] = wrapper
    try:
        with connections["second"].schema_editor() as editor:
            for model in tables():
                if not model._meta.proxy:
                    editor.create_model(model)
        settings.JOBS = {**settings.JOBS, "DATABASES": ["default", "second"]}
        yield "second"
    finally:
        wrapper.close()
        del connections["second"], connections[NO_DB_ALIAS]
        del connections.settings["second"]


@pytest.fixture
def redis_server() -> servers.Server:
    return server(servers.Redis)


@pytest.fixture
def postgres_server() -> servers.Server:
    return server(servers.Postgres)


@pytest.fixture
def rabbitmq_server() -> servers.Server:
    return server(servers.RabbitMQ)


@pytest.fixture(
    params=[pytest.param("database", marks=pytest.mark.database), pytest.param("redis", marks=pytest.mark.servers)]
)
def store(request, settings):
    """Where locks are held: each test once per store. The environment with which a process uses it, too."""
    if request.param == "redis":
        request.getfixturevalue("redis_cache")
        return {"CACHE_URL": settings.CACHES["default"]["LOCATION"]}
    return {"CACHE_URL": ""}


@pytest.fixture
def redis_cache(redis_server, settings):
    """The lock cache in an empty Redis, which runs again afterwards."""
    if not find_spec("jobs.contrib.redis_locks"):
        pytest.skip("locks are in Redis by an extension")

    def use(**options):
        settings.CACHES = {
            "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis_server.url, "OPTIONS": options}
        }

    use()
    redis_server.call("FLUSHALL")
    yield use
    redis_server.resume()
    if not redis_server.is_running:
        redis_server.start()


@pytest.fixture(autouse=True)
def _clean(request):
    """Each test starts with an empty broker, and with a worker state without a stop."""
    yield
    syncpoints.arm(None)
    worker_state.wipe()
    worker_state.queues, worker_state.limits = [], {}
    if find_spec("jobs.contrib.short_looks"):
        import_module("jobs.contrib.short_looks.clock")._positions.clear()
    if any(mark.kwargs.get("transaction") for mark in request.node.iter_markers("django_db")):
        _empty_broker()


def _empty_broker() -> None:
    with current_app.connection_for_write() as broker:
        for queue in (current_app.conf.task_default_queue, "mail"):
            with contextlib.suppress(Exception):
                broker.channel().queue_purge(queue)
    if settings.CELERY_BROKER_URL == "jobs://" or connection.vendor == "sqlite":
        # On SQLite they are in a file that Django's flush does not know.
        side = SideDatabase()
        with side.cursor() as cursor:
            for model in tables():
                if getattr(model, "is_beside", False):
                    cursor.execute(f"DELETE FROM {model._meta.db_table}")
        side.close()


@pytest.fixture
def use_broker(settings):
    """Point this process, and the workers that it starts, at another broker."""
    conf = current_app.conf
    before = {name: conf.get(name) for name in ("broker_url", "broker_transport_options", "broker_failover_strategy")}

    def use(url: str, **options: object) -> None:
        if url == "jobs://" and not find_spec("jobs.contrib.transport"):
            pytest.skip("the database is a broker by an extension")
        settings.CELERY_BROKER_URL = url
        conf.broker_url = url
        conf.broker_transport_options = {**celery_settings(url).get("broker_transport_options", {}), **options}
        if options:
            settings.CELERY_BROKER_TRANSPORT_OPTIONS = conf.broker_transport_options
        end_broker_connections()
        _empty_broker()

    yield use
    conf.update(before)
    end_broker_connections()


def end_broker_connections() -> None:
    """End those that kombu keeps for Celery; it makes new ones, for a pool that was closed gives nothing any more."""
    pools.reset()
    current_app._get_current_object()._after_fork()


@pytest.fixture
def staff(client):
    """Log somebody in who may enter the admin, and has these permissions."""
    from django.contrib.auth.models import Permission, User

    def log_in(*codenames: str):
        user = User.objects.create_user("ada", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def memory():
    """The project keeps results elsewhere."""
    app = current_app._get_current_object()
    before = app.conf.result_backend
    for url in ("cache+memory://", before):
        app.conf.result_backend, app._local.backend, app._backend_cache = url, None, None
        if url != before:
            yield


@pytest.fixture
def declare():
    """Make a task as the decorator does when the app is ready."""
    from celery import current_app

    from jobs import Task

    made = []

    def nothing(user_id=None):
        pass

    def declare(base=Task, name=None, body=nothing, **options):
        made.append(name or f"tests.declared{time.monotonic_ns()}")
        return current_app._task_from_fun(body, name=made[-1], base=base, **options)

    yield declare
    for name in made:
        current_app.tasks.pop(name, None)


@pytest.fixture(
    params=[
        pytest.param("TestCase", marks=pytest.mark.django_db),
        pytest.param("TransactionTestCase", marks=pytest.mark.django_db(transaction=True)),
    ]
)
def case(request):
    """Each test once in the transaction of a ``TestCase``, and once with real commits."""
    return request.param


@pytest.fixture
def only_their_own_tasks(monkeypatch):
    """Apps that a test makes do not share the tasks of other tests."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    # Celery prefers it to any setting.
    monkeypatch.delenv("CELERY_BROKER_URL", raising=False)


@pytest.fixture
def watching():
    """A worker that has been there for an hour, and whose only process does nothing."""
    from tests.helpers.verifying import watching_worker

    return watching_worker()


@pytest.fixture
def viewer(staff):
    """A client of somebody who may look at jobs and nodes, and do nothing else."""
    return staff("view_job", "view_node")


@pytest.fixture
def held_open():
    """Somebody's transaction that began before all this, so that nothing is vacuumed."""
    if connection.vendor != "postgresql":
        pytest.skip("others forget at once what was changed")
    other = connection.copy()
    other.set_autocommit(False)
    with other.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT count(*) FROM jobs_job")
    yield
    other.rollback()
    other.close()
