"""The admin: what every job did, where it is now and why, and the buttons to put it right."""

from jobs import extensions
from jobs.admin.job import JobAdmin

__all__ = ["JobAdmin"]

# The admin modules of extensions register themselves.
tuple(extensions.modules("admin"))
