"""Fixtures for calls whose request is compared with Celery's."""

from tests.helpers.parity import ours, stock  # noqa: F401  (fixtures)
