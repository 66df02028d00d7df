"""For the settings of a product: its tables are made from its models, as its migrations take minutes, and ours run."""

from __future__ import annotations


class Unmigrated(dict):
    def __contains__(self, label: object) -> bool:
        return not str(label).startswith("jobs")

    def __getitem__(self, label: str) -> None:
        return None

    def get(self, label: str, default: object = None) -> object:
        return None if label in self else default


MIGRATION_MODULES = Unmigrated()
