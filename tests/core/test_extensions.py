"""What extensions have for the doors of the core."""

import pytest

from jobs import extensions


def test_two_extensions_that_have_the_same_are_told_of_and_none_wins_in_silence(monkeypatch):
    monkeypatch.setattr(extensions, "through", lambda door: ({"a": 1, "b": 2}, {"b": 3}))
    with pytest.raises(ValueError, match="two extensions have b for the door 'instead'"):
        extensions.merged("instead")


def test_a_function_and_a_class_in_place_of_one_class_are_refused_by_name(monkeypatch):
    class Own:
        pass

    name = f"{__name__}.Own"
    found = ({name: "jobs.store.base.Store"}, {name: "jobs.store.base.owned"})
    monkeypatch.setattr(extensions, "through", lambda door: found)
    with pytest.raises(TypeError, match=f"2 extensions replace {name}"):
        extensions.instead(Own)
