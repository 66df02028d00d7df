"""The app's own tasks; ``app.autodiscover_tasks()`` finds them."""

from __future__ import annotations

from celery import shared_task

from jobs.board import board
from jobs.task import Task


@shared_task(base=Task, name="jobs.probe")
def probe() -> str:
    """Do nothing, and say where: ``manage.py jobs doctor`` follows it from the call to the end."""
    return str(board.node)
