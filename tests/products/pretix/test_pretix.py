"""pretix, from the index and unchanged, with the lines of our page about it: it leaves what it leaves with Celery.

On a bare Debian nothing else is needed: its wheels bring their libraries.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import server
from tests.helpers.harness import ROOT
from tests.helpers.servers import Postgres, Redis, die_with_parent, free_port

pytestmark = [pytest.mark.slow, pytest.mark.servers, pytest.mark.timeout(1500)]

PRETIX = "pretix==2026.8.0"
HERE = Path(__file__).parent
FLOWS = [
    node.name
    for node in ast.parse((HERE / "flows.py").read_text()).body
    if isinstance(node, ast.FunctionDef) and any(ast.unparse(each) == "flow" for each in node.decorator_list)
]
#: What ``audit`` says before the switch, of which files, and how often.
BEFORE = {
    ("breaks", "base/services/cart.py", "atomic(durable=True)"): 6,
    ("breaks", "base/services/export.py", "atomic(durable=True)"): 4,
    ("breaks", "base/services/export.py", "close_old_connections()"): 2,
    ("breaks", "base/services/invoices.py", "atomic(durable=True)"): 1,
    ("breaks", "base/services/orders.py", "atomic(durable=True)"): 1,
    ("breaks", "base/services/waitinglist.py", "atomic(durable=True)"): 1,
    ("differs", "base/services/mail.py", "committed with the job"): 1,
    ("differs", "base/services/mail.py", "before self.retry()"): 4,
    ("differs", "api/views/exporters.py", "asks for a result"): 1,
    ("differs", "api/views/shredders.py", "asks for a result"): 3,
    ("differs", "base/views/tasks.py", "asks for a result"): 1,
    ("differs", "control/views/orders.py", "asks for a result"): 1,
    ("differs", "plugins/ticketoutputpdf/api.py", "asks for a result"): 1,
}
#: And what is left with the lines of the page.
AFTER = {
    ("differs", "base/metrics.py", "length of a broker's list"): 1,
    ("differs", "base/services/mail.py", "length of a broker's list"): 1,
    ("needless", "base/services/mail.py", "on_commit() around a call"): 1,
    ("needless", "base/services/tasks.py", "waits for the commit"): 2,
}


class Side:
    """pretix with its settings, its database, and its numbers of Redis."""

    def __init__(self, python: Path, directory: Path, name: str, settings: str, first: int) -> None:
        self.python, self.name, self.directory = python, name, directory / name
        self.directory.mkdir()
        (self.directory / f"on_{name}.py").write_text(
            f"{settings}\nfrom tests.products.unmigrated import MIGRATION_MODULES\n"
        )
        postgres, redis = server(Postgres), server(Redis)
        host = re.fullmatch(r"postgres\w*://(?P<user>\w+)@(?P<host>[\w.]+):(?P<port>\d+)/\w+", postgres.url)
        assert host is not None, postgres.url
        at = redis.url.rpartition("/")[0]
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "CELERY_"))}
        self.env |= {
            "DJANGO_SETTINGS_MODULE": f"on_{name}",
            "PYTHONPATH": f"{ROOT}:{self.directory}",
            "PYTHONWARNINGS": "ignore",
            "DATA_DIR": str(self.directory),
            "PRETIX_CONFIG_FILE": os.devnull,
            "PRETIX_DATABASE_BACKEND": "postgresql",
            "PRETIX_DATABASE_NAME": f"pretix_{name}",
            **{f"PRETIX_DATABASE_{key.upper()}": value for key, value in host.groupdict().items()},
            "PRETIX_REDIS_LOCATION": f"{at}/{first}",
            "PRETIX_CELERY_BROKER": f"{at}/{first + 1}",
            "PRETIX_CELERY_BACKEND": f"{at}/{first + 2}",
            "PRETIX_MAIL_HOST": "127.0.0.1",
            "PRETIX_MAIL_PORT": str(free_port()),
            # Its webhooks go to this machine, and it asks no bank for rates.
            "PRETIX_PRETIX_ALLOW_HTTP_TO_PRIVATE_NETWORKS": "true",
            "PRETIX_PRETIX_ECB_RATES": "false",
        }

    def manage(self, *command: str) -> str:
        ran = subprocess.run(
            [self.python, "-m", "pretix", *command], cwd=self.directory, env=self.env, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
        return ran.stdout

    def audit(self) -> Counter[tuple[str, str, str]]:
        """The kind of each finding, its file, and what of :data:`BEFORE` and :data:`AFTER` it says."""
        texts = {text for _, _, text in BEFORE | AFTER}
        found: Counter[tuple[str, str, str]] = Counter()
        for each in json.loads(self.manage("jobs", "audit", "--json"))["findings"]:
            place = each["where"].rpartition("/pretix/")[2].partition(":")[0]
            found[each["kind"], place, next((text for text in texts if text in each["says"]), each["says"])] += 1
        return found

    def begin(self) -> subprocess.Popen[bytes]:
        with (self.directory / "flows.out").open("wb") as out:
            command = die_with_parent(str(self.python), str(HERE / "flows.py"), str(self.directory / "left.json"))
            return subprocess.Popen(command, cwd=self.directory, env=self.env, stdout=out, stderr=out)

    def left(self) -> dict[str, Any]:
        return json.loads((self.directory / "left.json").read_text())


def lines_of_the_page() -> str:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "howto" / "pretix.md").read_text(), re.M | re.S)[0]


@pytest.fixture(scope="module")
def sides(product, tmp_path_factory) -> tuple[Side, Side]:
    directory = tmp_path_factory.mktemp("pretix")
    python = product(PRETIX, "aiosmtpd")
    ours = Side(python, directory, "jobs", lines_of_the_page(), 0)
    return ours, Side(python, directory, "celery", "from pretix.settings import *", 3)


@pytest.fixture(scope="module")
def left(sides) -> tuple[dict[str, Any], dict[str, Any]]:
    """What each flow left, with jobs and with stock Celery, which run side by side."""
    ours, stock = sides
    postgres: Any = server(Postgres)
    postgres.create_database("pretix_celery")
    stock.manage("migrate", "--run-syncdb", "-v", "0")
    postgres.create_database("pretix_jobs", template="pretix_celery")
    ours.manage("migrate", "-v", "0")
    for side, running in [(side, side.begin()) for side in (ours, stock)]:
        assert running.wait(600) == 0, (side.directory / "flows.out").read_text()[-4000:]
    return ours.left(), stock.left()


@pytest.mark.parametrize("name", FLOWS)
def test_users_find_what_stock_celery_leaves(left, name):
    with_jobs, stock = (side["flows"][name] for side in left)
    assert "left" in stock, stock["raised"]
    assert "left" in with_jobs, with_jobs["raised"]
    assert with_jobs == stock


def test_all_that_was_called_was_a_job(left):
    ours, stock = (side["run"] for side in left)
    # A task that a worker received as a message is none.
    assert not ours["messages"]
    assert {*ours["jobs"]} == {*stock["messages"]}
    assert len(ours["jobs"]) > 12


def test_audit_names_what_has_to_change_and_nothing_else(sides, tmp_path):
    ours, _ = sides
    plain = lines_of_the_page() + 'JOBS = {"APPS": ["pretix"]}'
    assert Side(ours.python, tmp_path, "plain", plain, 6).audit() == BEFORE | AFTER
    assert ours.audit() == AFTER
