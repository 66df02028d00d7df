"""``--autoscale``: Celery's autoscaler also counts the processes that run jobs."""

PRIVATE = """
celery.worker.autoscale:Autoscaler.qty -                | autoscaling/scaler.py: processes that run jobs are busy
celery.worker.autoscale:Autoscaler.maybe_scale self     | autoscaling/doors.py: the autoscaler looks without messages
"""
