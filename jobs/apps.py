from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "jobs"
    verbose_name = _("Jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from jobs import extensions, store, tasks  # noqa: F401  (registers our own tasks)
        from jobs.worker import bootsteps  # noqa: F401  (listens to Celery's workers)

        store.install()
        for ready in extensions.through("ready"):
            ready()
