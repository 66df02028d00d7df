"""Celery's task events of jobs, for Flower and ``celery events``."""
