from django.apps import AppConfig


class StrangersConfig(AppConfig):
    name = "tests.strangers"

    def ready(self):
        # As django-structlog's guide has it in the project's celery.py.
        from django_structlog.celery.steps import DjangoStructLogInitStep

        from shop.celery import app

        app.steps["worker"].add(DjangoStructLogInitStep)
