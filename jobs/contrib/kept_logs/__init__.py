"""What a body logged, kept beside its job: ``JOBS["KEEP_LOGS"]``."""

SETTINGS = ("KEEP_LOGS",)
