"""What Celery promises of its tasks holds for ours: its own integration tests pass, but for those that are named."""

from __future__ import annotations

import pytest

from tests.celery_suite import differences, run, source
from tests.conftest import not_installed, server
from tests.helpers.servers import Missing, Postgres

pytestmark = [
    pytest.mark.slow,
    pytest.mark.servers,
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module")
def failed() -> dict[str, str]:
    """What failed, and how. What nobody expects is run again, with more time: this machine may be busy."""
    try:
        source()
    except Missing as exc:
        not_installed(str(exc))

    def fail(*tests: str, patience: int = 1) -> dict[str, str]:
        found = run(server(Postgres), *tests, patience=patience)
        assert found, "no test was run"
        return {test: line["says"] for test, line in found.items() if line["outcome"] == "failed"}

    first = fail()
    surprises = first.keys() - differences()["ours"].keys() - differences()["either"].keys()
    again = fail(*surprises, patience=10) if surprises else {}
    return {test: says for test, says in (first | again).items() if test not in surprises or test in again}


def test_what_is_not_named_passes(failed):
    named = differences()["ours"] | differences()["either"]
    surprises = {test: says for test, says in failed.items() if test not in named}
    assert not surprises, "\n\n".join(f"{test}\n{says}" for test, says in surprises.items())


def test_what_is_named_fails(failed):
    mended = differences()["ours"].keys() - failed.keys()
    assert not mended, f"take these out of differences.toml: {sorted(mended)}"
