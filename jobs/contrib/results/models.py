"""What no job's row has: results of stock tasks, states that bodies set, saved groups."""

from django.db import models


class StoredResult(models.Model):
    """Results of tasks that are no jobs, the state that a running job sets (``update_state``), and saved groups.

    See ``store.py``.
    """

    is_beside = True

    #: A task's id, or ``group:`` and a group's id.
    id = models.CharField(primary_key=True, max_length=255)
    #: What Celery's backends store of a task, as JSON: status, result, traceback, children, ...
    meta = models.TextField()
    #: The lease of the run that wrote it; None: no job wrote it.
    lease = models.IntegerField(null=True)
    #: Seconds since 1970 by the database's clock; None: it never expires (``result_expires``).
    expires_at = models.FloatField(null=True, db_index=True)

    class Meta:
        db_table = "jobs_stored_result"
