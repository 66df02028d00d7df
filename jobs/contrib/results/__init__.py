"""Celery's result backend over the jobs' rows: what callers wait for, and what stock tasks store."""

PART_OF = ("jobs.contrib.listening",)
PRIVATE = """
celery.local:Proxy._get_current_object self | results/backend.py: the app itself, behind current_app
celery.backends.base:Backend._get_result_meta self result state traceback request | results/backend.py: what it stores
celery.backends.base:Backend._ensure_not_eager self | results/backend.py: a result of an eager call has no row
celery.backends.base:Backend._sleep self amount | results/backend.py: between two looks for a result
"""
