"""Whether a task survives being killed anywhere: ``assert_idempotent()``, and ``manage.py jobs crashtest``."""

PUBLIC = {"testing.NotIdempotent": "crash", "testing.assert_idempotent": "crash"}

PRIVATE = """
celery.app.base:Celery._local -                         | child.py: the result backend of a run on a copy
django.core.cache.backends.locmem:_caches -             | recorder.py: caches that processes of a test share
django.core.cache.backends.locmem:_expire_info -        | recorder.py: the same
django.db.backends.base.base:BaseDatabaseWrapper._nodb_cursor self | copies.py: copies of a database
"""
