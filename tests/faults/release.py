"""The release after this one, played; there is no other release yet, and none before.

Only the version of its jobs is played, which this one does not know.
"""

from __future__ import annotations

import os

from jobs.calling import calls

#: What a process of the release after finds in its environment.
AFTER = {"JOBS_TEST_RELEASE": "after"}


def play() -> None:
    """In a process of the other release, while its tasks are imported: be that release."""
    if os.environ.get("JOBS_TEST_RELEASE") == "after":
        calls.VERSION += 1
