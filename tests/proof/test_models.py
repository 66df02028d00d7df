"""The check of the models can fail. ``python -m proof`` itself is a step of CI."""

from __future__ import annotations

import json

import pytest

from proof import __main__, page, spin
from proof.checks import MODELS, Bounds, Guard, Model
from tests.proof.needs import needs_spin


def small(bounds: str, guard: str) -> Model:
    bound, missed = Bounds("small", ("TIME=3", bounds)), Guard("a guard", ("TIME=3", guard), "jobs", "it")
    return Model("batch", "", (), (bound,), (missed,), ends=False)


@needs_spin
@pytest.mark.parametrize(
    ("bounds", "guard", "code"), [("ALL", "NO_BUT", 0), ("NO_BUT", "NO_BUT", 1), ("ALL", "NOTHING", 1)]
)
def test_a_property_that_fails_and_a_guard_that_nobody_misses_are_said(bounds, guard, code, monkeypatch, capsys):
    monkeypatch.setattr(__main__, "MODELS", (small(bounds, guard),))
    monkeypatch.setattr("sys.argv", ["proof", "--json", "--only", "batch"])
    assert __main__.main() == code
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(row["states"] > 100 for row in rows)
    assert all(row["holds"] for row in rows) == (code == 0)


@needs_spin
def test_a_counterexample_is_a_way_from_the_beginning():
    trace = spin.search("batch", ("TIME=3", "NO_BUT")).trace
    assert trace is not None
    assert trace[0] == "@ 0 claims all token=1"
    assert trace[-1].startswith(("@", "="))


def test_another_release_of_spin_may_count_otherwise_and_nothing_else(monkeypatch, tmp_path):
    def rows(states, step, bounds="as they are"):
        for model in MODELS:
            yield {"model": model.name, "check": bounds, "states": states, "trace": None}
            for guard in model.guards:
                yield {"model": model.name, "check": f"without: {guard.name}", "states": 1, "trace": [f"@ {step}"]}

    for name in ("PAGE", "TRACES"):
        monkeypatch.setattr(page, name, tmp_path / name)
    monkeypatch.setattr(spin, "version", lambda: "Spin Version 6.5.2")
    page.PAGE.write_text(page.text([*rows(7, "0 claims")]))
    page.TRACES.write_text(page.traces([*rows(7, "0 claims")]))
    assert page.is_current([*rows(7, "0 claims")])
    assert not page.is_current([*rows(8, "0 claims")])
    assert not page.is_current([*rows(7, "1 claims")])
    monkeypatch.setattr(spin, "version", lambda: "Spin Version 7.0")
    assert page.is_current([*rows(8, "1 claims")])
    assert not page.is_current([*rows(7, "0 claims", "others")])


def test_each_flag_is_one_of_its_model():
    for model in MODELS:
        text = (spin.MODELS / f"{model.name}.pml").read_text()
        for flags in [bounds.flags for bounds in model.bounds] + [guard.flags for guard in model.guards]:
            for flag in flags:
                assert f"#ifdef {flag}\n" in text or f"#ifndef {flag.partition('=')[0]}\n" in text, (model.name, flag)
