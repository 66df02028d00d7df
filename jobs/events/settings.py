"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: The name of this service for others, in events: ``"billing"``. Its queue at the broker is named after it.
    #: None: the name of the Celery app.
    SERVICE: str | None = None
    #: The RabbitMQ over which services with databases of their own tell each other of events: an ``amqp://`` URL. None:
    #: events reach the handlers of all services that share this database.
    EVENT_BROKER: str | None = None
    #: Events are deleted after this time; until then they can be replayed, and copies are known. None keeps them.
    RETENTION_EVENTS: float | None = 30 * 86400.0


#: What the values must be (see ``jobs/extensions.py``).
RULES = {
    "SERVICE": (r"(?=.{1,50}$)(?a:[\w-]+(\.[\w-]+)*)", "up to 50 letters, digits, '-' and '.', or None, not {!r}"),
    "EVENT_BROKER": ("amqps?://.*", "the URL of a RabbitMQ, amqp://..., or None"),
}
