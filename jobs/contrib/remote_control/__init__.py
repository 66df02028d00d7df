"""Celery's remote control of jobs: ``inspect active`` and ``query_task``, ``revoke`` by id and by stamps."""
