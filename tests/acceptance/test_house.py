"""The rooms of ``jobs`` (its packages, and its modules at the top): their imports go downwards, without a circle."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import jobs
from jobs import extensions
from jobs.doors import Extension
from tests import house as house_counts

HOME = Path(jobs.__file__).parent
TESTS = Path(__file__).parents[1]

#: They are read as data, or import nothing of ours.
NO_ROOMS = {"migrations", "locale", "templates"}

#: So many rooms are read before the way through them is clear; so many stand above each other; so many imports tie
#: one to another.
ROOMS, FLOORS, ARROWS = 27, 10, 116

#: The lines of the core: so many can be read in an afternoon.
CORE = 9_000


#: What Celery's settings say, which Celery imports.
SETTINGS = {"jobs.backend", "jobs.backend:Backend"}


def room_of(path: Path) -> str:
    return path.relative_to(HOME).parts[0].removesuffix(".py")


def is_of_extension(path: Path) -> bool:
    """They stand on top of the core."""
    return path.is_relative_to(HOME / "contrib") or any(map(path.is_relative_to, extensions.folders().values()))


def names_in(tree: ast.AST, package: str = "jobs") -> set[str]:
    """What of a package is imported, at the top or in a function, as dotted names; also what a string names."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and is_module(node.value):
            found.add(node.value.replace(":", "."))
    return {name for name in found if name.split(".")[0] == package}


def is_module(value: object) -> bool:
    """Whether it is a string by which a module of ours, or something in it, could be imported."""
    if not isinstance(value, str) or value in SETTINGS or not re.fullmatch(r"jobs(\.\w+)+(:\w+)?", value):
        return False
    path = HOME.parent / value.partition(":")[0].replace(".", "/")
    return any(each.is_dir() or each.with_suffix(".py").exists() for each in (path, path.parent) if each != HOME)


def house() -> dict[str, set[str]]:
    """Of each room the rooms that it imports."""
    found: dict[str, set[str]] = {}
    for path in HOME.rglob("*.py"):
        if (room := room_of(path)) in NO_ROOMS or is_of_extension(path):
            continue
        below = found.setdefault(room, set())
        for name in names_in(ast.parse(path.read_text())):
            part = name.partition(".")[2].partition(".")[0]
            is_room = part and ((HOME / part).is_dir() or (HOME / f"{part}.py").exists())
            below.add(part if is_room else "__init__")
    return {room: below - {room} for room, below in found.items()}


def floors() -> dict[str, int]:
    """On which floor each room stands: above all that it imports."""
    rooms = house()

    @lru_cache(None)
    def floor(room: str, *above: str) -> int:
        assert room not in above, f"a circle: {' -> '.join([*above, room])}"
        return 1 + max((floor(below, *above, room) for below in rooms[room]), default=0)

    return {room: floor(room) for room in rooms}


def test_imports_between_rooms_go_downwards():
    found = floors()
    assert len(found) <= ROOMS, sorted(found)
    assert max(found.values()) <= FLOORS, sorted(found.items(), key=lambda pair: -pair[1])
    arrows = [f"{room} -> {below}" for room, rooms in house().items() for below in rooms]
    assert len(arrows) <= ARROWS, sorted(arrows)


def test_the_core_names_no_extension():
    """It finds them by their folders (``jobs/extensions.py``)."""
    found = []
    for path in HOME.rglob("*.py"):
        if room_of(path) not in NO_ROOMS and not is_of_extension(path):
            text = path.read_text()
            found += [f"{path}: {name}" for name in extensions.folders() if re.search(rf"\b{re.escape(name)}\b", text)]
    assert found == []


def test_the_doors_are_few_enough_to_be_read():
    assert (HOME / "doors.py").read_text().count("\n") <= 180


def test_what_an_extension_has_is_a_door():
    """Nobody asks for another name, and says so."""
    of_extensions = [module.Doors for module in extensions.modules("doors") if hasattr(module, "Doors")]
    doors = {name for each in (Extension, *of_extensions) for name in (*vars(each), *each.__annotations__)}
    odd = {type(each): {name for name in vars(type(each)) if name[0] != "_"} - doors for each in extensions.instances()}
    assert {kind: names for kind, names in odd.items() if names} == {}


def test_no_room_outgrows_its_reader():
    """An extension that does shrinks, or is divided. The operator's room has several."""
    found = house_counts.lines()
    names = {str(folder.relative_to(HOME)) for folder in extensions.folders().values()}
    assert {name: found[name] for name in names if found[name] > (6000 if name == "contrib/operator" else 1500)} == {}
    core = sum(number for name, number in found.items() if name not in names)
    assert core <= CORE, "take something out"


def test_sql_for_our_tables_is_in_stores():
    """In ``jobs/store``, and in the ``store.py`` of an extension."""
    statement = re.compile(r"\b(?:FROM|INTO|UPDATE|JOIN|TRUNCATE|TABLE) jobs_\w+")
    assert "contrib/fair/store.py" in house_counts.files(statement), "it finds those that are where they should be"
    assert house_counts.outside(house_counts.files(statement)) == []


def test_tests_stand_as_the_code_does():
    """A room's tests, or an extension's, have its name."""
    rooms = {path.name for path in (TESTS / "core").iterdir() if path.is_dir()} - {"__pycache__"}
    assert rooms <= {room_of(path) for path in HOME.rglob("*.py")}
    tested = {path.parent.name for path in (TESTS / "contrib").glob("*/test_*.py")}
    assert tested == {name.rpartition(".")[2] for name in extensions.folders()}


def test_no_test_file_imports_another():
    found = []
    for path in TESTS.rglob("*.py"):
        found += [f"{path}: {name}" for name in names_in(ast.parse(path.read_text()), "tests") if ".test_" in name]
    assert found == []


def test_what_stands_on_an_extension_that_is_gone_takes_no_part(monkeypatch):
    """``verify`` is part of the operator's room, and that is part of the inspection."""
    there = extensions.folders()
    del there["jobs.contrib.inspection"]
    monkeypatch.setattr(extensions, "folders", lambda: there)
    found = extensions.present.__wrapped__()
    assert "jobs.contrib.limits" in found
    assert not {"jobs.contrib.operator", "jobs.contrib.verify"} & found.keys()
