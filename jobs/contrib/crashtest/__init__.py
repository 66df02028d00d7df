"""Whether a task survives being killed anywhere: ``assert_idempotent()``, and ``manage.py jobs crashtest``."""

PUBLIC = {"testing.NotIdempotent": "crash", "testing.assert_idempotent": "crash"}
