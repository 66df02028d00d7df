from django.apps import AppConfig


class ProjectConfig(AppConfig):
    name = "benchmarks.project"
    default_auto_field = "django.db.models.BigAutoField"
