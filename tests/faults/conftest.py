"""The cells in which scenarios run, and what a scenario is given: ``database``, ``broker``, ``ledger``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import amqp
import pytest

from jobs.contrib.event_broker.amqp import queue_of
from tests.conftest import faults_mode, server
from tests.faults.broker import Broker
from tests.faults.database import Database, MariaDatabase, ServerTemplate, SqliteTemplate
from tests.faults.ledger import Ledger
from tests.faults.services import Services
from tests.helpers import servers
from tests.helpers.loyalty import alias_of

#: What a server is, and what its database is to a scenario.
DATABASES: dict[str, tuple[Any, type[Database]]] = {
    "postgres": (servers.Postgres, Database),
    "mariadb": (servers.DurableMariaDB, MariaDatabase),
}
BROKERS = {"redis": servers.Redis, "rabbitmq": servers.RabbitMQ, "jobs": None}

HERE = Path(__file__).parent


def pytest_generate_tests(metafunc) -> None:
    """One cell per scenario, the next for each next scenario; every cell in which it can occur with --faults=all.

    MariaDB comes on top, with one broker, and in the quick selection.
    """
    if "cell" not in metafunc.fixturenames:
        return
    marks = {mark.name: mark.args for mark in metafunc.definition.iter_markers()}
    databases = [name for name in marks.get("databases", ("postgres",)) if name != "mariadb"]
    cells = list(product(databases, marks.get("brokers", tuple(BROKERS))))
    if faults_mode(metafunc.config) not in ("all", "bounds", "soak"):
        cells = [cells[_turn(metafunc) % len(cells)]]
    params = [pytest.param(cell, id="-".join(cell)) for cell in cells]
    if "mariadb" in marks.get("databases", ()):
        params.append(pytest.param(("mariadb", "jobs"), id="mariadb-jobs", marks=pytest.mark.quick))
    metafunc.parametrize("cell", params)


def _turn(metafunc) -> int:
    """The scenario's place in its file and the file's place, so that it does not depend on what else is selected."""
    names = [name for name in vars(metafunc.module) if name.startswith("test_")]
    files = sorted(path.name for path in HERE.glob("test_*.py"))
    return names.index(metafunc.function.__name__) + files.index(metafunc.definition.path.name)


def pytest_collection_modifyitems(config, items) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        if "Guard:" not in (item.function.__doc__ or ""):
            raise pytest.UsageError(f"{item.nodeid}: the docstring has to name its guard, after 'Guard:'")
        item.add_marker(pytest.mark.timeout(300, method="signal"))
    mode = faults_mode(config)
    left = [
        item
        for item in ours
        if (mode == "quick" and item.get_closest_marker("quick") is None)
        or (mode != "all" and any(item.get_closest_marker(name) for name in ("long", "again")))
        or any((mode == name) != (item.get_closest_marker(name) is not None) for name in ("bounds", "soak"))
    ]
    if left:
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem) -> Iterator[None]:
    result = yield
    books = pyfuncitem.funcargs.get("ledger") or pyfuncitem.funcargs.get("services")
    if books is not None:
        assert books.recovered is not None, "a scenario ends with check(within=...) of its ledger or its services"
        pyfuncitem.user_properties.append(("recovered", f"{books.recovered:.1f}"))
        pyfuncitem.user_properties.append(("measured", books.measured))
    return result


def pytest_terminal_summary(terminalreporter) -> None:
    reports = [report for report in terminalreporter.getreports("passed") if report.when == "call"]
    rows = [(dict(report.user_properties).get("recovered"), report) for report in reports]
    if rows := [(recovered, report) for recovered, report in rows if recovered is not None]:
        terminalreporter.section("seconds to recover, and in all")
        for recovered, report in rows:
            terminalreporter.line(f"{recovered:>6} {report.duration:6.1f}  {report.nodeid}")
    measured = [(report.nodeid, dict(report.user_properties).get("measured")) for report in reports]
    if measured := [(nodeid, text) for nodeid, text in measured if text]:
        terminalreporter.section("the bounds: scenario, broker, lost, twice, stuck, measured")
        for nodeid, text in sorted(measured):
            name, _, cell = nodeid.rpartition("::test_")[2].rstrip("]").partition("[")
            terminalreporter.line(f"| {name.replace('_', ' ')} | {cell.split('-')[1]} | 0 | 0 | 0 | {text} |")


@pytest.fixture(scope="session")
def templates(tmp_path_factory, django_db_blocker):
    """The migrated databases, each made when the first scenario asks for it."""
    made: dict[str, ServerTemplate | SqliteTemplate] = {}

    def template(name: str) -> ServerTemplate | SqliteTemplate:
        if name not in made and name in DATABASES:
            kind, database = DATABASES[name]
            made[name] = ServerTemplate(server(kind, "faults"), database)  # type: ignore[arg-type]
        elif name not in made:
            made[name] = SqliteTemplate(tmp_path_factory.mktemp("template"))
        return made[name]

    return template


@pytest.fixture
def database(cell, templates, tmp_path, django_db_blocker) -> Iterator[Database]:
    with django_db_blocker.unblock(), templates(cell[0]).copy(tmp_path) as database:
        yield database


@pytest.fixture
def broker(cell, database, use_broker) -> Iterator[Broker]:
    kind = BROKERS[cell[1]]
    broker = Broker(cell[1], server(kind, "faults") if kind else None)
    use_broker(broker.url)
    broker.drop_messages()
    yield broker
    broker.mend()


@pytest.fixture
def ledger(broker) -> Ledger:
    return Ledger()


@pytest.fixture(params=["shared", "rabbitmq"])
def services(request, cell, broker, templates, tmp_path, settings) -> Iterator[Services]:
    """Two services, with a database that they share, or with one each and RabbitMQ between them."""
    settings.JOBS = {**settings.JOBS, "SERVICE": "shop"}
    if request.param == "shared":
        yield Services(None, "", "default")
        return
    rabbitmq = server(servers.RabbitMQ, "faults")
    with amqp.Connection(f"127.0.0.1:{rabbitmq.port}") as connection:
        for name in ("shop", "loyalty"):
            connection.channel().queue_delete(queue_of(name))
    settings.JOBS = {**settings.JOBS, "EVENT_BROKER": rabbitmq.url}
    with templates(cell[0]).another(tmp_path) as url, alias_of(url) as alias:
        yield Services(rabbitmq, url, alias)
    rabbitmq.resume()
    if not rabbitmq.is_running:
        rabbitmq.start()
