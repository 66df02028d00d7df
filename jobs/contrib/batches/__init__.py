"""Many jobs with one name, one bar and one end: ``jobs.batch``."""

PART_OF = ("jobs.contrib.stock_calls",)

PUBLIC = {"batch": "batch"}
