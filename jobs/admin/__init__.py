"""The admin: what every job did, and where it is now. It reads, and changes nothing but what only a
person can know: whether an external call happened."""

from jobs.admin.effect import EffectAdmin
from jobs.admin.job import JobAdmin
from jobs.admin.node import NodeAdmin

__all__ = ["EffectAdmin", "JobAdmin", "NodeAdmin"]
