"""What the settings say of tasks of others."""

from __future__ import annotations

import pytest

from tests.helpers.checked import app, body

pytestmark = pytest.mark.usefixtures("only_their_own_tasks")


def test_settings_give_options_to_tasks_by_their_names(settings):
    settings.JOBS = {
        "TASKS": {"*": {"max_crashes": 5}, "t.s*": {"atomic": False, "unique": "x"}, "t.sent": {"unique": None}}
    }
    own = app()
    made = {name: own.task(name=name, max_crashes=1)(body) for name in ("t.sent", "t.s", "t.other")}
    assert [(task.atomic, task.max_crashes, task.unique) for task in made.values()] == [
        (False, 5, None),
        (False, 5, "x"),
        (True, 5, None),
    ]
    assert made["t.s"].key_templates.keys() == {"unique"}


def test_an_option_from_the_settings_that_cannot_work_says_so_as_if_it_were_declared(settings):
    settings.JOBS = {"TASKS": {"t.*": {"unique": "k:{nobody}"}}}
    own = app()
    own.task(name="t.unique")(body)
    with pytest.raises((TypeError, ValueError), match="t.unique.*nobody"):
        own.finalize()
