"""It has no part in the core. ``jobs.contrib.crashtest`` looks for ``races.py``."""
