"""Events between services with databases of their own, over RabbitMQ: ``JOBS["EVENT_BROKER"]``."""

SETTINGS = ("EVENT_BROKER", "EVENT_CELERY_EXCHANGE")
