"""Many jobs with one name, one bar and one end: ``jobs.batch``."""

PUBLIC = {"batch": "batch"}
