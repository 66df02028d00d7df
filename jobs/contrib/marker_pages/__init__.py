"""The markers in the admin: a list, and a page for each, where it may be deleted."""

PART_OF = ("jobs.contrib.redaction",)
