"""Makes the Celery app of an installed package ours, by a setting: ``JOBS["APPS"]``."""

PRIVATE = """
celery.app.base:Celery.create_task_cls self    | packaged/early.py: the base class of all of an app's tasks
"""
