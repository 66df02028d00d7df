"""Values as tokens: encrypted with the first of ``JOBS["ENCRYPT_KEYS"]``, and read with any of them.

A row holds a token as ``{"__type__": "encrypted", "__value__": ...}``. ``jobs.models.values.decoded`` decrypts it in a
run, and in a block of :func:`revealed`. Elsewhere it returns a placeholder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from kombu.utils.json import register_type

from jobs.conf import conf
from jobs.lifecycle.run import NotHere, current_run
from jobs.models.values import RESERVED, Repr, decoded

TYPE = "encrypted"
# Else a text from a backup, posted as JSON into an argument, would be decrypted; or clear text not be encrypted.
RESERVED.add(TYPE)

_revealed: ContextVar[bool] = ContextVar("jobs.vault.revealed", default=False)


class Encrypted(Repr):
    """The placeholder for a value where it may not be read. A job cannot take it as an argument."""

    token = ""

    def revealed(self) -> Any:
        """The value, for code that has to hide it in texts. Raises :class:`CannotDecrypt`."""
        return decoded(json.loads(_decrypt(self.token.encode())))


class CannotDecrypt(NotHere):
    """No key of this process made the token. Another worker may have the key: while keys change, workers differ."""

    # Very many jobs may wait for a key, for a long time.
    pause, longest = 30.0, 600.0
    waits_for = "key:"


@contextmanager
def revealed() -> Iterator[None]:
    """Values are decrypted in the block."""
    before = _revealed.set(True)
    try:
        yield
    finally:
        _revealed.reset(before)


def encrypt(value: Any) -> dict[str, str]:
    """Plain JSON data as a token. ``ImproperlyConfigured``: there is no key, or no cryptography."""
    text = json.dumps(value, ensure_ascii=False).encode()
    return {"__type__": TYPE, "__value__": _keys().encrypt(text).decode()}


def is_token(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"__type__", "__value__"}:
        return False
    return value["__type__"] == TYPE and isinstance(value["__value__"], str)


def renewed(value: Any) -> Any:
    """The value with all its tokens encrypted with the first key; tokens that already are stay as they are.

    Raises :class:`CannotDecrypt`.
    """
    if isinstance(value, list):
        return [renewed(each) for each in value]
    if not isinstance(value, dict):
        return value
    if not is_token(value):
        return {name: renewed(each) for name, each in value.items()}
    token = value["__value__"].encode()
    try:
        _keys(is_first=True).decrypt(token)
    except _library().InvalidToken:
        return {**value, "__value__": _keys().encrypt(_decrypt(token)).decode()}
    return value


def _read(token: str) -> Any:
    if current_run() is None and not _revealed.get():
        hidden = Encrypted("(encrypted)")
        hidden.token = token
        return hidden
    return decoded(json.loads(_decrypt(token.encode())))


def _decrypt(token: bytes) -> bytes:
    try:
        found: bytes = _keys().decrypt(token)
    except ImproperlyConfigured as exc:
        raise CannotDecrypt(str(exc)) from None
    except _library().InvalidToken:
        raise CannotDecrypt(
            "none of JOBS['ENCRYPT_KEYS'] made this value: add the key that was the first when the job was called"
        ) from None
    return found


def _keys(is_first: bool = False) -> Any:
    keys = tuple(conf().ENCRYPT_KEYS)
    return _fernet(keys[:1] if is_first else keys)


def new_key() -> str:
    return str(_library().Fernet.generate_key().decode())


def _library() -> Any:
    try:
        return import_module("cryptography.fernet")
    except ImportError:
        cure = "pip install 'django-transactional-jobs[encryption]'"
        raise ImproperlyConfigured(f"JOBS['ENCRYPT'] needs cryptography: {cure}") from None


@lru_cache(maxsize=10)
def _fernet(keys: tuple[str, ...]) -> Any:
    library = _library()
    try:
        made = [library.Fernet(key) for key in keys]
    except ValueError:
        made = []
    if not made:
        raise ImproperlyConfigured(
            "JOBS['ENCRYPT_KEYS'] must be keys of cryptography's Fernet, the newest first; "
            "manage.py jobs encrypt --new-key makes one"
        )
    return library.MultiFernet(made)


register_type(Encrypted, TYPE, str, _read)
