"""`manage.py jobs`: look at jobs, change them, maintain them; and what the subcommands of other extensions share."""

PART_OF = (
    "jobs.contrib.checks",
    "jobs.contrib.inspection",
    "jobs.contrib.operations",
    "jobs.contrib.pruning",
    "jobs.contrib.redaction",
    "jobs.contrib.sessions",
)
