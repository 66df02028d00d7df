"""Django's admin reads this. An extension has the pages, and those of other extensions stand on them."""

from jobs import extensions


def register() -> None:
    """Register the pages with the admin: the core has none."""


extensions.instead(register)()
