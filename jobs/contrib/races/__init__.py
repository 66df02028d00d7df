"""Two runs of a task at once that interrupt each other at every step: a part of ``assert_idempotent()``."""

PART_OF = ("jobs.contrib.crashtest",)
