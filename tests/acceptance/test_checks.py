"""The book of ids: each check is documented and tested."""

from __future__ import annotations

import re
from pathlib import Path

from jobs.contrib.checks import system as checks
from tests.helpers.harness import ROOT

#: Ids that meant something once, and are not used again.
RETIRED = {"E008", "E009", "E014", "W005", "W006", "W007", "W009", "W010", "W012", "W013", "W014"}


def test_the_documentation_names_every_check():
    known = set(checks.TEXTS)
    files = [Path(checks.__file__), *(ROOT / "jobs").rglob("checks.py")]
    said = "".join(path.read_text() for path in files)
    assert known == set(re.findall(r'\bsay\("([EW]\d{3})"', said))
    pages = (ROOT / "docs").rglob("*.md")
    named = {key for page in pages for key in re.findall(r"^\| `([EW]\d{3})` \|", page.read_text(), re.M)}
    assert known == named
    assert not known & RETIRED
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert known <= set(re.findall(r"\b([EW]\d{3})\b", tests)), "each is tested"
