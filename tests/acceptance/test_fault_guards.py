"""The guards of the fault scenarios are still what they were when their scenarios were seen failing without them."""

from __future__ import annotations

import shutil

import pytest

from tests.faults.guards import ROOT, Guard, Without, read_all

SOURCE = '''
FENCE: str = "lease = 1 AND token = 2"

class Runner:
    number = 1

    def run(self):
        """Run."""
        def inner():
            return beats.beat() + other.beat()

        if self.number:
            inner().update(
                self.number
            )
'''


def test_every_guard_can_be_taken_out(tmp_path):
    """What it names is there exactly once, and what is left without it is still Python."""
    wrong = []
    for scenario in read_all():
        for guard in scenario.guards:
            try:
                for part in guard.parts:
                    copy = part.file(tmp_path)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(part.file(ROOT), copy)
                guard.take_out(tmp_path)
            except (OSError, ValueError) as exc:
                wrong.append(f"{scenario.name}: {exc}")
    assert not wrong


def test_a_guard_quotes_text_only_where_nothing_has_a_name():
    parts = {part for scenario in read_all() for guard in scenario.guards for part in guard.parts}
    clauses = [part.clause for part in parts if part.clause]
    assert len(clauses) <= len(parts) / 4
    assert all(len(clause) <= 70 and "\n" not in clause for clause in clauses)


@pytest.mark.parametrize(
    ("without", "old", "new"),
    [
        (Without("m:FENCE", '"1 = 1"'), '"lease = 1 AND token = 2"', '("1 = 1")'),
        (Without("m:FENCE", "", clause=" AND token = 2"), " AND token = 2", ""),
        (Without("m:Runner.number", "0"), "number = 1", "number = (0)"),
        (Without("m:Runner.run.inner"), "return beats.beat() + other.beat()", "return None"),
        (Without("m:Runner.run", "0", call="other.beat"), "other.beat()", "(0)"),
        (Without("m:Runner.run", call="update"), SOURCE[SOURCE.index("inner().") :].rstrip(), "(None)"),
        (Without("m:Runner.run"), SOURCE[SOURCE.index('"""') :].rstrip(), "return None"),
    ],
    ids=str,
)
def test_what_is_taken_out(without, old, new):
    assert without.taken_out(SOURCE) == SOURCE.replace(old, new)


@pytest.mark.parametrize(
    "without",
    [
        Without("m:GONE"),
        Without("m:Runner"),
        Without("m:Runner.inner"),
        Without("m:Runner.run", call="beat"),
        Without("m:FENCE", clause="lease = 2"),
        Without("m:FENCE", "(", clause="="),
        Without("m:FENCE", "("),
    ],
    ids=str,
)
def test_what_cannot_be_taken_out_is_said(without):
    with pytest.raises((ValueError, SyntaxError)):
        without.taken_out(SOURCE)


def test_a_guard_is_for_the_cases_that_it_names():
    guard = Guard((), ("redis", "before_ack"))
    assert guard.fits("test_process.py::test_process_killed_at[before_ack-postgres-redis]")
    assert Guard((), ("round-robin",)).fits("test_broker.py::test_failover_and_back[postgres-redis-round-robin]")
    assert not guard.fits("test_process.py::test_process_killed_at[before_ack-postgres-rabbitmq]")
    assert not guard.fits("test_process.py::test_process_killed_at")
    assert Guard(()).fits("test_process.py::test_process_killed_at")
