"""It has no part in the core. ``jobs.contrib.crashtest`` runs tasks on the copies."""
