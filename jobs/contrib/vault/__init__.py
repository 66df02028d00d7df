"""Encryption of arguments that must not be readable in the database: ``JOBS["ENCRYPT"]``."""

PART_OF = ("jobs.contrib.redaction",)
