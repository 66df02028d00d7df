"""What extensions have for the doors of the core."""

import pytest

from jobs import extensions


def test_two_extensions_that_have_the_same_are_told_of_and_none_wins_in_silence(monkeypatch):
    monkeypatch.setattr(extensions, "through", lambda door: ({"a": 1, "b": 2}, {"b": 3}))
    with pytest.raises(ValueError, match="two extensions have b for the door 'instead'"):
        extensions.merged("instead")
