"""The admin: what every job did, where it is now and why, and the buttons to put it right."""

from jobs.admin.dashboard import OverviewAdmin
from jobs.admin.effect import EffectAdmin
from jobs.admin.job import JobAdmin
from jobs.admin.marker import MarkerAdmin
from jobs.admin.node import NodeAdmin

__all__ = ["EffectAdmin", "JobAdmin", "MarkerAdmin", "NodeAdmin", "OverviewAdmin"]
