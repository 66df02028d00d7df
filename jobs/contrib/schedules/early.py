"""``celery beat``, if it runs beside the workers, decides the same ticks: no job is made twice (``celery_beat.py``)."""

from typing import Any

from celery.signals import beat_embedded_init, beat_init


@beat_init.connect(dispatch_uid="jobs.contrib.schedules")
def _on_beat(sender: Any = None, **kwargs: Any) -> None:
    if (scheduler := getattr(sender, "scheduler", None)) is not None:
        from jobs.contrib.schedules.celery_beat import Beside

        scheduler.apply_async = Beside(scheduler)


@beat_embedded_init.connect(dispatch_uid="jobs.contrib.schedules")
def _on_embedded(**kwargs: Any) -> None:
    """``celery worker -B``: the process has closed all that it inherited, and opened a database under those numbers."""
    from jobs.lifecycle.wakeups import Wakeup, wakeup

    vars(wakeup).update(vars(Wakeup()))
