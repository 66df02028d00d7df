"""A Celery app that stands in an installed package becomes ours by the settings: ``JOBS["APPS"]``."""

PRIVATE = """
celery.app.base:Celery.create_task_cls self    | packaged/early.py: the base class of all of an app's tasks
"""
