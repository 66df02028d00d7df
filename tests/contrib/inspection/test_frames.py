"""Which frames of a traceback are the project's own."""

from __future__ import annotations

import json
import traceback

import jobs
from jobs.contrib.inspection.frames import own_frames as own
from jobs.models.values import normalize


def of(call) -> str:
    try:
        call()
    except Exception:
        return traceback.format_exc()
    raise AssertionError("it did not fail")


def body():
    json.loads("{")


def test_those_of_libraries_and_of_this_app_are_left_out():
    found = own(of(body))
    assert "in body" in found
    assert 'json.loads("{")' in found
    assert "decoder.py" not in found
    assert str(jobs.__path__[0]) not in own(of(lambda: normalize((object(),), {})))


def test_those_of_the_cause_come_too():
    def wrapped():
        try:
            body()
        except ValueError as exc:
            raise RuntimeError("no") from exc

    found = own(of(wrapped))
    assert found.index("in body") < found.rindex("in wrapped")


def test_a_traceback_from_another_machine():
    text = """Traceback (most recent call last):
  File "/srv/venv/lib/python3.12/site-packages/jobs/lifecycle/run.py", line 1, in run
    body()
  File "/srv/shop/tasks.py", line 7, in pay
    return charge()
           ^^^^^^^^
  File "C:\\venv\\Lib\\site-packages\\requests\\api.py", line 3, in post
    ...
  File "<frozen importlib._bootstrap>", line 1, in _load
ValueError: no
"""
    assert (
        own(text)
        == """  File "/srv/shop/tasks.py", line 7, in pay
    return charge()
           ^^^^^^^^
"""
    )


def test_nothing_to_leave_out_or_nothing_to_show():
    assert own('  File "/srv/shop/tasks.py", line 7, in pay\n    x\nValueError: no\n') == ""
    assert own("") == own("Traceback of something else") == ""
