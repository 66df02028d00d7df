"""An app of Celery's, and the same one of ours."""

from tests.helpers.parity import ours, stock  # noqa: F401  (fixtures)
