"""What no rollback takes back is found where it happens inside of a transaction: ``JOBS["ISOLATION"]``."""

PUBLIC = {"testing.isolation": "isolation"}
