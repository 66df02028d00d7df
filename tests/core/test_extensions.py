"""What extensions have for the doors of the core."""

import pytest

from jobs import extensions
from jobs.doors import Extension


def test_two_extensions_that_have_the_same_are_told_of_and_none_wins_in_silence(monkeypatch):
    monkeypatch.setattr(extensions, "through", lambda door: ({"a": 1, "b": 2}, {"b": 3}))
    with pytest.raises(ValueError, match="two extensions have b for the door 'instead'"):
        extensions.merged("instead")


def test_what_an_extension_has_is_a_door():
    """Nobody asks for another name, and says so."""
    of_extensions = [vars(module.Doors) for module in extensions.modules("doors") if hasattr(module, "Doors")]
    doors = {*vars(Extension), *Extension.__annotations__}.union(*of_extensions)
    odd = {type(each): {name for name in vars(type(each)) if name[0] != "_"} - doors for each in extensions.instances()}
    assert {kind: names for kind, names in odd.items() if names} == {}
