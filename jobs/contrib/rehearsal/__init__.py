"""Look before you retry: the body of a job runs in a transaction that is rolled back, and what it would do is shown."""

PART_OF = ("jobs.contrib.isolation", "jobs.contrib.redaction")
