"""Celery's result backend over the jobs' rows: what callers wait for, and what stock tasks store."""
