"""Whether sessions of dead runs can be ended."""

from collections.abc import Iterator

from django.core.checks import CheckMessage

from jobs import store
from jobs.contrib.checks.system import OF_DATABASE, add_texts, say
from jobs.contrib.sessions.store import WithSessions
from jobs.contrib.sessions.zombies import CURE

add_texts("""
W031 In the database {alias!r} this process logs in as {role}, and other workers as {others}, whose sessions it may not
     end: what one of them leaves behind when its machine dies keeps its locks until the server notices.
  -> {cure}.
""")


@OF_DATABASE.append
def out_of_reach(alias: str) -> Iterator[CheckMessage]:
    """Whether a worker can end the sessions that dead workers leave behind."""
    at = store.of(alias)
    role, others = at.out_of_reach() if isinstance(at, WithSessions) else ("", [])
    if others:
        yield say("W031", alias=alias, role=role, others=set(others), cure=CURE.format(role=role))
