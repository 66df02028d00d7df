"""A person asks to be forgotten: all that jobs keep of a tag is deleted."""

PART_OF = (
    "jobs.contrib.operations",
    "jobs.contrib.pruning",
    "jobs.contrib.redaction",
    "jobs.contrib.results",
    "jobs.contrib.tags",
)
