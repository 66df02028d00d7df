"""The jobs in the admin: a list that stays fast, a page for each with its history, and what all other pages share."""

PART_OF = ("jobs.contrib.inspection", "jobs.contrib.operations", "jobs.contrib.passing", "jobs.contrib.redaction")
