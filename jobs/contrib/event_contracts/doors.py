"""It has no part in the core beside its name in ``jobs.testing``."""
