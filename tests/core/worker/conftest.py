"""The brokers of real workers."""

from tests.helpers.workers import broker, on  # noqa: F401  (fixtures)
