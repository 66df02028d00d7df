"""Events between services with databases of their own, over RabbitMQ: ``JOBS["EVENT_BROKER"]``."""

PART_OF = ("jobs.contrib.shared_connections", "jobs.events")
SETTINGS = ("EVENT_BROKER", "EVENT_CELERY_EXCHANGE")
