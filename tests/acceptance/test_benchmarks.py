"""The benchmarks run as their README says; what they find is another matter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
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
