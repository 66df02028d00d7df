"""It has no part in the core beside its command and its names in ``jobs.testing``."""
