"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: The topic exchange at that broker of services which run celery-amqp-events: ``"events"``. Events are sent as
    #: Celery tasks, which those services read, and their events are received. None: there are no such services.
    EVENT_CELERY_EXCHANGE: str | None = None


#: As those of ``jobs.conf``.
RULES = {
    "EVENT_CELERY_EXCHANGE": (r"[\w.:-]{1,255}", "the name of an exchange, 'events', or None, not {!r}"),
}
