"""What is known of jobs and workers, for pages, commands and rules: it only asks."""

PART_OF = ("jobs.contrib.locks", "jobs.contrib.redaction")
