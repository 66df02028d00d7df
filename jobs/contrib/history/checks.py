"""Whether this process may make the days of history."""

from collections.abc import Iterator

from django.core.checks import CheckMessage

from jobs.contrib.checks.system import OF_DATABASE, add_texts, say
from jobs.contrib.history import store
from jobs.store import of

add_texts("""
W038 In the database {alias!r} this process logs in as {role}, which may not make tables like those of {owner}: history
     gets no partition for the days to come, and what ends is deleted row by row.
  -> GRANT {owner} TO {role}, and GRANT CREATE ON SCHEMA; or let cron run manage.py jobs prune --once as {owner}.
""")


@OF_DATABASE.append
def cannot_make_days(alias: str) -> Iterator[CheckMessage]:
    if of(alias).is_divided and (found := store.lacks_right(alias)) is not None:
        role, owner = found
        yield say("W038", alias=alias, role=role, owner=owner)
