from tests.helpers.alone import is_alone

__all__ = ["is_alone"]
