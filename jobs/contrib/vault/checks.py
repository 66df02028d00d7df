"""What is wrong with the encryption."""

from collections.abc import Iterator

from django.core.checks import CheckMessage

from jobs.conf import conf, problems
from jobs.contrib.checks.system import OF_SETTINGS, add_texts, say
from jobs.contrib.vault.tokens import encrypt

add_texts("""
E024 No argument can be encrypted: {exc}
  -> Until then each call of a task that JOBS['ENCRYPT'] names raises.
""")


@OF_SETTINGS.append
def check_encryption() -> Iterator[CheckMessage]:
    if not problems() and conf().ENCRYPT:
        try:
            encrypt(None)
        except Exception as exc:
            yield say("E024", exc=exc)
