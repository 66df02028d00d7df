"""What the processes of a pool share, when one of them dies with it in hand."""

from __future__ import annotations

import subprocess
import sys

from tests.harness import ROOT

SCRIPT = """
import gc, os, signal
from jobs.pool import BlockingPool, Lock

def dies():
    for each in gc.get_objects():
        if isinstance(each, Lock):
            each.acquire()
    os.kill(os.getpid(), signal.SIGKILL)

pool = BlockingPool(1)
assert len([each for each in gc.get_objects() if isinstance(each, Lock)]) == 2
pool.apply_async(dies)
assert pool.apply_async(os.getpid).get(timeout=20) != os.getpid()
pool.terminate()
pool.join()
"""


def test_a_process_that_is_killed_takes_no_lock_along():
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
