"""What people may see of a job's values, as the function ``JOBS["REDACT"]`` decides. Only this file calls it."""

import datetime
import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from django.utils.module_loading import import_string

from jobs.calling.request import TEXTS
from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.contrib.redaction.display import BLANK, HIDDEN, Shown, names_of
from jobs.models import Job
from jobs.models.values import CUT, decoded, safe_repr

#: Options that contain arguments of other calls.
ARGUMENTS = ("link", "link_error", "chain", "chord", "stamps")
#: Columns that are made of arguments; and the parts of an error's entry that are not.
KEYS, PLAIN = ("marker_key", "unique_key", "limit_key", "order_key"), ("type", "at", "attempt")

#: Values of fewer characters are blanked only where they are a whole word: other words may contain them.
SHORT = 4


class Redacted(Shown):
    """A job's values after ``JOBS["REDACT"]``, each computed on access. If the function fails, the value is hidden."""

    is_whole = False

    @classmethod
    def veil(cls, rows: Iterable[Any]) -> None:
        if not (found := list(rows)):
            return
        first = found[0]
        if isinstance(first, Job):
            for job in found:
                cls(job)._veil()
            return
        if not (hasattr(first, "job") and hasattr(first, "key")):
            return
        # Each row's key is made of the arguments of its job.
        jobs = Job.objects.using(first._state.db).only("task", "args", "kwargs")
        makers = {job.pk: cls(job) for job in jobs.filter(pk__in={row.job for row in found if row.job})}
        for row in found:
            # A row that no job wrote has no arguments; those of a deleted job are not known.
            seen = makers.get(row.job) if row.job else cls(Job.of({"task": ""}))
            row.key = BLANK if seen is None else seen.text("key", row.key)

    def _veil(self) -> None:
        """Redact only the columns that were read: no list reads all of them."""
        job, values = self.job, self.job.__dict__
        for column, name in {**dict.fromkeys(KEYS, "key"), "error_message": "error"}.items():
            if values.get(column) is not None:
                setattr(job, column, self.text(name, values[column]))
        if values.get("error") is not None:
            job.error = self.error(job.error)
        if values.get("errors"):
            job.errors = list(map(self.error, job.errors)) if isinstance(job.errors, list) else self.error(job.errors)

    @cached_property
    def args(self) -> list[Any]:
        args = self.job.args if isinstance(self.job.args, list) else [HIDDEN]
        names = names_of(self.job.task, len(args))
        names += map(str, range(len(names), len(args)))
        return list(map(self._redacted, names, args))

    @cached_property
    def kwargs(self) -> dict[str, Any]:
        # A person may have edited the row with SQL.
        kwargs = self.job.kwargs if isinstance(self.job.kwargs, dict) else {"?": HIDDEN}
        return {name: self._redacted(name, value) for name, value in kwargs.items()}

    @property
    def options(self) -> Any:
        """The options without links, chains and chords, which contain arguments, and without Celery's texts of them."""
        found = self._blanked(_without(self.job.options, *ARGUMENTS))
        headers = found.get("headers") if isinstance(found, dict) else None
        for about in headers.values() if isinstance(headers, dict) else ():
            # Extensions store there what a job is about.
            if isinstance(about, dict) and about.get("order_key") is not None:
                about["order_key"] = self.text("key", about["order_key"])
        return found

    def value(self, name: str, value: Any) -> Any:
        """A value that is not an argument. It may contain one, which is blanked first."""
        return None if value is None else self._redacted(name, self._blanked(value))

    def text(self, name: str, text: Any) -> str:
        # The arguments of jobs.send are those of another task; the rest of its texts is our own.
        text = self.blanked(str(text))
        return text if self.job.task == "jobs.send" else str(self._redacted(name, text))

    def error(self, entry: Any) -> Any:
        if not isinstance(entry, dict):
            return self.value("error", entry)
        shown = {name: each for name, each in entry.items() if name in PLAIN}
        others = {name: each for name, each in entry.items() if name not in PLAIN}
        for name, each in others.items():
            shown[name] = self.text("error", each) if isinstance(each, str) else self.value("error", each)
        return {name: shown[name] for name in entry}

    def blanked(self, text: str) -> str:
        try:
            words, others = self._hidden
        except Exception:
            # An argument cannot be decrypted here, and the text may contain it.
            return HIDDEN
        for value in others:
            text = text.replace(value, BLANK)
        if words:
            text = re.sub(r"\w+", lambda found: BLANK if found[0] in words else found[0], text)
        for cut in CUT.finditer(text):
            # Where the text was cut, it may contain only a part of a value.
            text = _end_cut(text[: cut.start()], others) + cut[0] + _begin_cut(text[cut.end() :], others)
        return text

    def _blanked(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._blanked(each) for each in value]
        if isinstance(value, dict):
            return {self.blanked(str(name)): self._blanked(each) for name, each in value.items()}
        if isinstance(value, str):
            return self.blanked(value)
        if value is None or isinstance(value, bool):
            return value
        return value if (text := str(value)) == self.blanked(text) else BLANK

    @cached_property
    def _hidden(self) -> tuple[set[str], list[str]]:
        """The texts to blank: short words, and other texts, the longest first."""
        leaves = [*_hidden(decoded(self.job.args), self.args), *_hidden(decoded(self.job.kwargs), self.kwargs)]
        forms = {form for leaf in leaves for form in _forms(leaf)}
        words = {form for form in forms if len(form) < SHORT and re.fullmatch(r"\w+", form)}
        others = {form for form in forms - words if len(form) >= SHORT or re.search(r"\w", form)}
        return words, sorted(others, key=len, reverse=True)

    def _redacted(self, name: str, value: Any) -> Any:
        value = decoded(value)
        if self.job.task == "jobs.send":
            # The arguments of another task.
            return HIDDEN
        try:
            return import_string(str(conf().REDACT))(self.job.task, name, value)
        except Exception:
            # Hide the value, but show the page.
            logger.exception("JOBS['REDACT'] failed", extra={"action": "redact_failed", "job": str(self.job.pk)})
            return HIDDEN


def _hidden(value: Any, shown: Any) -> Iterator[Any]:
    """The parts of a value that are not in its shown form."""
    if hasattr(value, "revealed"):
        # It is encrypted. A text of the run may contain it, whatever is shown in its place.
        yield from _hidden(value.revealed(), None)
    elif isinstance(value, dict):
        known = shown if isinstance(shown, dict) else {}
        for name, each in value.items():
            # A plain word is a field's name, which is in the code.
            if name not in known and not re.fullmatch("[a-z_]+", name):
                yield name
            yield from _hidden(each, known.get(name))
    elif isinstance(value, list):
        others = shown if isinstance(shown, list) and len(shown) == len(value) else [None] * len(value)
        for each, other in zip(value, others, strict=True):
            yield from _hidden(each, other)
    elif type(value) is not type(shown) or value != shown:
        yield value


def _forms(value: Any) -> Iterator[str]:
    """How a value looks in a text: as it is, and as Python and JSON write it."""
    if value is None or isinstance(value, bool):
        # Such words are everywhere, and reveal nothing.
        return
    if isinstance(value, bytes):
        yield repr(value)[2:-1]
        value = value.decode(errors="replace")
    text = str(value)
    yield from (text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    if isinstance(value, int | float):
        yield text.lstrip("-")
    elif not isinstance(value, str):
        yield safe_repr(value)
    if isinstance(value, datetime.date | datetime.time):
        yield value.isoformat()


def _end_cut(text: str, values: list[str]) -> str:
    for value in values:
        for size in range(min(len(value) - 1, len(text)), SHORT - 1, -1):
            if text.endswith(value[:size]):
                return text[:-size] + BLANK
    return text


def _begin_cut(text: str, values: list[str]) -> str:
    for value in values:
        for size in range(min(len(value) - 1, len(text)), SHORT - 1, -1):
            if text.startswith(value[-size:]):
                return BLANK + text[size:]
    return text


def _without(values: Any, *names: str) -> Any:
    if not isinstance(values, dict):
        return HIDDEN
    found = values | {name: HIDDEN for name in names if name in values}
    return found | {"headers": _without(values["headers"], *TEXTS)} if "headers" in values else found
