"""Celery's task events of jobs, for Flower and ``celery events``."""

PART_OF = ("jobs.contrib.redaction",)
