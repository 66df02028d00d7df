"""The part of small jobs in the core."""

from __future__ import annotations

from typing import Any

from jobs.doors import Extension


class Grouped(Extension):
    """Options of a task that come on top:

    synchronous_commit (bool, default ``JOBS["SYNCHRONOUS_COMMIT"]``):
        With False the commit of its jobs does not wait for the disk (PostgreSQL). A crash of the server may undo the
        last ones, each whole, with its effects: they run again.
    grouped (bool, default False):
        Several bodies share one transaction, and one completion. For short bodies that touch nothing but the database.
    """

    options = {"synchronous_commit": ("True or False", (bool,)), "grouped": ("True or False", (bool,))}
    instead = {"jobs.worker.runner.Runner": "jobs.contrib.grouped.runner.GroupingRunner"}

    def called(self, task: Any) -> None:
        # By now all other extensions have declared what the task is.
        from jobs.contrib.grouped import declare

        declare.declared(task)
