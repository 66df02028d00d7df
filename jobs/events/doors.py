"""What of the events takes part in the core."""

from __future__ import annotations

from jobs.extensions import Extension


class Events(Extension):
    pass
