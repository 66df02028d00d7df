"""One reason why a job is where it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Reason:
    """What keeps a job, or what became of it."""

    #: For scripts; never translated.
    code: str
    #: One sentence, in the reader's language.
    says: str
    #: What to do about it; empty if there is nothing to do.
    cure: str = ""
    #: What it was concluded from; JSON.
    evidence: dict[str, Any] = field(default_factory=dict)
