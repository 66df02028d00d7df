"""An app of ours, with tasks whose bodies tell what they see."""

from tests.helpers.parity import ours  # noqa: F401  (a fixture)
