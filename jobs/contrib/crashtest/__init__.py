"""Whether a task survives being killed anywhere: ``assert_idempotent()``, and ``manage.py jobs crashtest``."""

PUBLIC = {"testing.NotIdempotent": "crash", "testing.assert_idempotent": "crash"}

PRIVATE = """
celery.app.base:Celery._local -                         | child.py: the result backend of a run on a copy
django.db.backends.base.base:BaseDatabaseWrapper._nodb_cursor self | copies.py: copies of a database
http.client:HTTPConnection._buffer -                    | recorder.py: the head of a request that is about to leave
"""
