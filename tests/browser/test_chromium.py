"""The browser itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from jobs.lifecycle.worker_state import is_alive
from tests.helpers.servers import family, wait_for

# Nobody tells it to end.
OPENS = """
import shutil, signal
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
    print("open", flush=True)
    signal.pause()
"""


def test_the_browser_dies_with_the_tests(chromium):
    process = subprocess.Popen([sys.executable, "-c", OPENS], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline()
        pids = family(process.pid)
        assert any(b"chromium" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not any(is_alive(pid) for pid in pids), 20, "Chromium is gone")
