"""History beside the queue: on PostgreSQL what ended is in a partition of its day, and goes with it in one DROP."""

PART_OF = ("jobs.contrib.pruning",)
