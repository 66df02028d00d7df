"""Tasks that run again and again: ``beat_schedule``, ``add_periodic_task()``, and tasks with ``every=``."""

PART_OF = ("jobs.contrib.stock_calls",)

PRIVATE = """
celery.beat:Scheduler.apply_async self entry producer advance | celery_beat.py: beat makes no calls beside the workers
celery.beat:Scheduler.reserve self entry                | celery_beat.py: the same
celery.schedules:crontab.remaining_delta self last_run_at tz | ticks.py: the hour that comes twice
"""
