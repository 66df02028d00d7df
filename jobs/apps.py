import sys

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "jobs"
    verbose_name = _("Jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from jobs import checks, store, tasks  # noqa: F401  (registers the system checks, and our own tasks)
        from jobs.lifecycle import isolation
        from jobs.worker import steps  # noqa: F401  (listens to Celery's workers)

        store.install()
        isolation.install_if_wanted()
        if (module := sys.modules.get("jobs.django_tasks")) is not None:
            module.make_celery_tasks()
