"""The admin: what every job did, where it is now and why, and the buttons to put it right."""

from jobs import extensions
from jobs.admin.idempotency import MarkerAdmin
from jobs.admin.job import JobAdmin
from jobs.admin.node import NodeAdmin

__all__ = [
    "JobAdmin", "MarkerAdmin", "NodeAdmin",
]  # fmt: skip

# They register themselves.
tuple(extensions.modules("admin"))
