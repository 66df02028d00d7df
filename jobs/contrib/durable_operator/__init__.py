"""What an operator has of durable tasks: the time line of a job, signals, ``jobs steps`` and ``jobs signal``."""

PART_OF = ("jobs.contrib.durable", "jobs.contrib.redaction")
