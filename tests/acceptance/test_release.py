"""What a release needs is there, and makes what it says: its artefacts, its notes, its workflows."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys

import pytest
import yaml

import release
from tests.helpers.harness import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
CHANGELOG = """# Changelog

## 0.2.0 (2027-01-31)

### The house

* New.

## 0.1.0 (unreleased)

* Old.
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_dry_run_makes_all_that_is_released():
    """Source and wheel, checked; a new project with nothing but the wheel runs a job; notes and documentation."""
    done = subprocess.run(
        [sys.executable, "-m", "release", "--dry-run"], cwd=ROOT, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^a new project .*succeeded ann", done.stdout, re.M), done.stdout
    assert {path.suffix for path in (release.TARGET / "dist").iterdir()} == {".whl", ".gz"}
    assert (release.TARGET / "notes.md").read_text()
    assert (release.TARGET / "site" / "index.html").exists()


def test_the_notes_are_those_of_one_version():
    assert release.notes(CHANGELOG, "0.2.0", is_dry=False) == "### The house\n\n* New.\n"
    assert release.notes(CHANGELOG, "0.1.0", is_dry=True) == "* Old.\n"


@pytest.mark.parametrize(
    ("version", "says"),
    [("0.1.0", "no date, but 'unreleased'"), ("0.3.0", "says nothing of 0.3.0"), ("0", "says nothing")],
)
def test_no_version_without_notes_and_a_date_is_released(version, says):
    with pytest.raises(release.Failed, match=says):
        release.notes(CHANGELOG, version, is_dry=False)


def test_a_tag_says_the_version(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["release", "--tag", "v99.0.0"])
    with pytest.raises(SystemExit, match=f"the tag is v99.0.0, and the version {release.version()}"):
        release.main()


def test_the_links_of_the_description_lead_into_the_repository():
    pytest.importorskip("setuptools")
    text = runpy.run_path(str(ROOT / "setup.py"))["description"]("https://host/a/b/blob/v1")
    assert "](https://host/a/b/blob/v1/docs/tutorial.md)" in text
    assert "](https://host/a/b/raw/v1/docs/images/dashboard.png)](https://host/a/b/blob/v1/docs/howto/" in text
    assert not re.search(r"\]\((?!https://|#)", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_do_what_it_says(path):
    """Nothing is written by default, each action has a version, each job an end, and each file that is named exists."""
    text = path.read_text()
    found = yaml.safe_load(text)
    default = found["permissions"]
    assert default == {"contents": "read"} or path.name == "docs.yml"
    for job in found["jobs"].values():
        if "uses" in job:
            assert (ROOT / job["uses"]).exists()
            continue
        assert job["timeout-minutes"] <= 350
        for step in job["steps"]:
            assert "run" in step or re.search(r"@(v\d+|release/v\d+)$", step["uses"])
    for name in re.findall(r"-r (\S+\.txt)|python ([\w/]+\.py)|pytest (?:-n \w+ )?([\w/]+)|(\.ci/run)", text):
        assert (ROOT / "".join(name)).exists(), name


def test_the_matrix_is_that_of_nox():
    pytest.importorskip("nox")
    combinations = runpy.run_path(str(ROOT / "noxfile.py"))["COMBINATIONS"]
    job = yaml.safe_load((GITHUB / "workflows" / "matrix.yml").read_text())["jobs"]["combination"]
    assert job["strategy"]["matrix"]["combination"] == list(combinations)
    [python] = [each["with"]["python-version"] for each in job["steps"] if "setup-python" in each.get("uses", "")]
    assert set(python.split()) == {each["Python"] for each in combinations.values()}


def test_what_is_uploaded_was_built_and_tested_before_and_needs_no_token():
    jobs = yaml.safe_load((GITHUB / "workflows" / "release.yml").read_text())["jobs"]
    upload = jobs["upload"]
    assert upload["needs"] == ["build", "tests"]
    assert upload["environment"] == "release"
    [index] = [each for each in upload["steps"] if each["uses"].startswith("pypa/gh-action-pypi-publish@")]
    assert index["with"]["attestations"] is True
    assert "password" not in index["with"]


def test_who_reads_the_pages_of_one_release_finds_the_others():
    assert "mike deploy --push --update-aliases" in (GITHUB / "workflows" / "release.yml").read_text()
    assert re.search(
        r"^extra:\n(?:  .*\n)*  version:\n    provider: mike$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE
    )


@pytest.mark.parametrize("path", sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name)
def test_a_form_asks_for_something(path):
    form = yaml.safe_load(path.read_text())
    if path.name == "config.yml":
        assert form == {"blank_issues_enabled": False}
        return
    assert form["name"]
    assert form["description"]
    fields = [each for each in form["body"] if each["type"] != "markdown"]
    assert len({each["id"] for each in fields}) == len(fields) > 0
    assert all(each["attributes"]["label"] for each in fields)
    assert any(each.get("validations", {}).get("required") for each in fields)
