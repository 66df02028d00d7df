"""What an operator has of events: pages, ``manage.py jobs events``, replay, problems and metrics."""

PART_OF = ("jobs.contrib.operations", "jobs.contrib.redaction", "jobs.events")
