"""How often workers look for jobs, and claim some."""

from __future__ import annotations

from collections import Counter
from pathlib import Path


class Looks:
    """Of those workers that get its ``env``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.env = {"JOBS_TEST_LOOKS": str(path)}

    def count(self, name: str = "claim") -> int:
        return Counter(self.path.read_text().split())[name]
