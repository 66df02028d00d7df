"""Whether a task survives being killed anywhere: ``assert_idempotent()``, and ``manage.py jobs crashtest``."""

PART_OF = ("jobs.contrib.copies", "jobs.contrib.redaction")

PUBLIC = {"testing.NotIdempotent": "crash", "testing.assert_idempotent": "crash"}

PRIVATE = """
celery.app.base:Celery._local -                         | child.py: the result backend of a run on a copy
http.client:HTTPConnection._buffer -                    | recorder.py: the head of a request that is about to leave
"""
