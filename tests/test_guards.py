"""The guards of the fault scenarios are still what they were when their scenarios were seen failing without them."""

from __future__ import annotations

from tests.faults.guards import ROOT, Guard, read_all


def test_every_guard_is_still_in_the_code_exactly_once():
    missing = {
        f"{scenario.name}: {text}" for scenario in read_all() for guard in scenario.guards for text in guard.missing()
    }
    assert not missing


def test_what_is_left_without_a_guard_is_still_python(tmp_path):
    for scenario in read_all():
        for guard in scenario.guards:
            for name, _, _ in guard.edits:
                copy = tmp_path / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text((ROOT / name).read_text())
            guard.take_out(tmp_path)


def test_a_guard_is_for_the_cases_that_it_names():
    guard = Guard((), ("redis", "before_ack"))
    assert guard.fits("test_process.py::test_process_killed_at[before_ack-postgres-redis]")
    assert Guard((), ("round-robin",)).fits("test_broker.py::test_failover_and_back[postgres-redis-round-robin]")
    assert not guard.fits("test_process.py::test_process_killed_at[before_ack-postgres-rabbitmq]")
    assert not guard.fits("test_process.py::test_process_killed_at")
    assert Guard(()).fits("test_process.py::test_process_killed_at")
