"""What it reads of ``settings.JOBS``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: Arguments that are encrypted in the database, by the name of a task or a pattern: ``{"hr.*": True, "shop.pay":
    #: ["iban"]}``. They are read in the run, and in the admin by people with the permission ``jobs.decrypt_job``.
    ENCRYPT: Mapping[str, Any] = field(default_factory=dict)
    #: Keys of cryptography's Fernet, the newest first: that one encrypts, and all of them decrypt.
    ENCRYPT_KEYS: Sequence[str] = ()


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple | set) and bool(value) and all(isinstance(each, str) for each in value)


#: What the values must be (see ``jobs/extensions.py``).
RULES = {
    "ENCRYPT": (
        lambda value: isinstance(value, Mapping) and all(each is True or _are_names(each) for each in value.values()),
        "a dict of True or lists of names, {{'hr.*': True, 'shop.pay': ['iban']}}, not {!r}",
    ),
}
