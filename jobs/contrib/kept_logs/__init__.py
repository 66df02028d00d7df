"""What a body logged, kept beside its job: ``JOBS["KEEP_LOGS"]``."""

PART_OF = ("jobs.contrib.redaction", "jobs.signals")
SETTINGS = ("KEEP_LOGS",)
