from __future__ import annotations

import os
import shutil

import pytest
from django.conf import settings

from tests import servers


def pytest_sessionfinish(session) -> None:
    for server in _running.values():
        server.stop()
    name = str(settings.DATABASES["default"].get("TEST", {}).get("NAME") or "")
    if "/jobs-tests-" in name:
        shutil.rmtree(os.path.dirname(name), ignore_errors=True)


_running: dict[type, servers.Server] = {}


def server(kind: type) -> servers.Server:
    """The session's server of a kind, started when the first test asks for it."""
    if kind not in _running:
        try:
            _running[kind] = kind()
        except servers.Missing as exc:
            if os.environ.get("JOBS_TEST_REQUIRE_SERVERS"):
                raise
            pytest.skip(f"not installed: {exc}")
    return _running[kind]


@pytest.fixture
def redis_server() -> servers.Server:
    return server(servers.Redis)


@pytest.fixture
def postgres_server() -> servers.Server:
    return server(servers.Postgres)


@pytest.fixture
def rabbitmq_server() -> servers.Server:
    return server(servers.RabbitMQ)


@pytest.fixture(autouse=True)
def _clean(request):
    """Each test starts with an empty broker, a closed breaker and no connection to the broker."""
    from jobs import publisher, syncpoints

    yield
    syncpoints.arm(None)
    publisher.breaker.closed_again = 0.0
    if "transactional_db" in request.fixturenames or any(m.kwargs.get("transaction") for m in request.node.iter_markers("django_db")):
        _empty_broker()
    publisher.forget_connections()


def _empty_broker() -> None:
    from celery import current_app

    with current_app.connection_for_write() as connection:
        channel = connection.default_channel
        for queue in ("celery", "mail"):
            try:
                channel.queue_purge(queue)
            except Exception:
                channel = connection.channel()
    if settings.CELERY_BROKER_URL == "jobs://":
        from jobs.databases import SideDatabase

        side = SideDatabase()
        with side.cursor() as cursor:
            for table in ("jobs_message", "jobs_binding", "jobs_beat"):
                cursor.execute(f"DELETE FROM {table}")
        side.close()
