"""Events between services with databases of their own, over RabbitMQ: ``JOBS["EVENT_BROKER"]``."""
