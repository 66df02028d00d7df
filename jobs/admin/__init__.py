"""The admin: what every job did, and where it is now. It reads; it changes nothing."""

from jobs.admin.job import JobAdmin
from jobs.admin.node import NodeAdmin

__all__ = ["JobAdmin", "NodeAdmin"]
