"""How long a worker that was told to stop waits for its bodies: every stop has an end."""

PRIVATE = """
celery.worker.worker:WorkController.wait_for_soft_shutdown self | stopping/stopping.py: a soft stop waits for jobs
"""
