"""Celery's own signals of a call: ``before_task_publish`` at the call, ``after_task_publish`` after the commit."""
