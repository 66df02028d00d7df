"""What runs again and again: ``beat_schedule``, ``add_periodic_task()``, and tasks with ``every=``."""
