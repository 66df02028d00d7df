"""The pages of the admin: what every job did, where it is now and why, and the buttons to put it right."""

from jobs import extensions
from jobs.contrib.pages.job import JobAdmin

__all__ = ["JobAdmin"]


def register() -> None:
    """``JobAdmin`` has registered itself, and so do the admin modules of all extensions."""
    tuple(extensions.modules("admin"))
