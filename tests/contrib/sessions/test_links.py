"""Both ends of a worker's connection to PostgreSQL look whether the other machine is still there."""

from __future__ import annotations

import pytest
from django.db import connection, connections
from django.db.backends.signals import connection_created

from jobs.contrib.sessions import links
from jobs.contrib.sessions.doors import Sessions
from jobs.store import databases

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture
def _watched(monkeypatch):
    options = connections.settings["default"]["OPTIONS"]
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", {**options, "connect_timeout": 7})
    Sessions().starting(None)
    yield
    connection_created.disconnect(dispatch_uid="jobs.contrib.sessions.links")


@pytest.mark.skipif(connection.vendor != "postgresql", reason="PostgreSQL only")
@pytest.mark.usefixtures("_watched")
def test_a_worker_and_its_server_notice_a_lost_link_and_the_project_decides():
    options = connections.settings["default"]["OPTIONS"]
    assert (options["connect_timeout"], options["keepalives_idle"]) == (7, links.KEEPALIVES["idle"])
    with databases.apart("default") as own, own.cursor() as cursor:
        cursor.execute("SHOW tcp_keepalives_count")
        assert cursor.fetchone() == (str(links.KEEPALIVES["count"]),)


@pytest.mark.skipif(connection.vendor == "postgresql", reason="other databases")
@pytest.mark.usefixtures("_watched")
def test_other_databases_keep_their_options():
    assert "keepalives_idle" not in connections.settings["default"]["OPTIONS"]
    with databases.apart("default") as own:
        own.ensure_connection()
