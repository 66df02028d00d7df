"""The benchmarks run as their README says; what they find is another matter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest

from tests.helpers.servers import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.servers, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
PAGES = [sys.executable, "-m", "benchmarks.pages", "--jobs", "1000", "--times", "1"]


def test_pages_measures_every_page(postgres_server):
    done = subprocess.run([*PAGES, "--json", "--plans"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert len(found["pages"]) > 30
    assert all(page["median_ms"] > 0 and page["bytes"] > 0 for page in found["pages"])
    assert done.returncode == (not all(page["held"] for page in found["pages"]))


@pytest.fixture
def scratch():
    """A folder that everybody may read: a server does not run as root."""
    with tempfile.TemporaryDirectory(prefix="jobs-benchmarks-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_pages_leaves_no_server_behind(postgres_server, number, scratch):
    log = scratch / "log"
    with log.open("wb") as err:
        process = subprocess.Popen(PAGES, cwd=ROOT, stderr=err, env={**os.environ, "TMPDIR": str(scratch)})
        try:
            wait_for(lambda: "of 1,000 jobs" in log.read_text() or process.poll() is not None, 60, "rows are built")
            [pid_file] = scratch.glob("jobs-postgres-*/data/postmaster.pid")
            server = int(pid_file.read_text().split()[0])
            process.send_signal(number)
            assert process.wait(30) == 128 + number, log.read_text()
        finally:
            process.kill()
    assert not Path(f"/proc/{server}").exists()
    assert list(scratch.iterdir()) == [log]


def test_the_adapter_of_the_public_benchmark_keeps_its_contract(postgres_server):
    """What its CONTRIBUTING_ADAPTERS.md asks for: a descriptor, then each metric at each tick, and 0 on SIGTERM."""
    manifest = json.loads((ROOT / "benchmarks/public/adapter.json").read_text())
    url = postgres_server.create_database(manifest["db_name"])
    settings = {"SCENARIO": "long_horizon", "PRODUCER_PACING": "harness", "WORKER_COUNT": "2", "SAMPLE_EVERY_S": "1"}
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks/public/adapter.py")],
        env={**environment, **settings, "DATABASE_URL": url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        records = map(json.loads, process.stdout)
        descriptor = next(records)
        assert descriptor["kind"] == "descriptor"
        assert descriptor["db_name"] == manifest["db_name"]
        assert set(descriptor["event_tables"]) >= set(manifest["event_tables"])
        process.stdin.write("ENQUEUE 30\nENQUEUE 20\n")
        process.stdin.flush()
        found = defaultdict(float)
        for record in records:
            assert (record["kind"], record["system"]) == ("adapter", manifest["system"])
            found[record["metric"]] += record["value"] * (record["window_s"] or 1)
            if found["completion_rate"] > 45 and record["metric"] == "queue_depth":
                break
        assert {f"claim_p{part}_ms" for part in (50, 95, 99)} < found.keys()
        assert found["enqueue_rate"] > 45
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        postgres_server.drop_database(manifest["db_name"])
