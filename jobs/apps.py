from typing import Any

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "jobs"
    verbose_name = _("Jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from jobs import checks, models, store, tasks  # noqa: F401  (registers the system checks, and our own tasks)
        from jobs.lifecycle import isolation, run
        from jobs.worker import steps  # noqa: F401  (listens to Celery's workers)

        store.install()
        isolation.install_if_wanted()
        models.above.update(wait=_wait, save_cursor=run.save_cursor)


def _wait(job: Any, timeout: float | None) -> Any:
    from jobs import backend

    return backend.wait(job, timeout)
