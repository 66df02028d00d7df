"""Subcommands of manage.py jobs, in this process: what they say, and how they refuse."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command


def run(*args: str) -> str:
    out = StringIO()
    call_command("jobs", *args, stdout=out, no_color=True)
    return out.getvalue()


def refused(*args: str) -> tuple[str, str]:
    out = StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("jobs", *args, stdout=out, no_color=True)
    return out.getvalue(), str(caught.value)
