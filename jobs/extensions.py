"""Finds the extensions, and what each has for a door (``jobs/doors.py``). The core does not name any extension.

A folder with a ``doors.py`` is an extension, and holds all of its feature. Most stand in ``jobs/contrib``; one whose
import path is public stands in ``jobs``. These of its files are read, if they are there:

``doors.py``
    a subclass of :class:`Extension`: its part in what the core does; read when a task is declared, or later.
    A class ``Doors``: what this extension itself asks other ones. They have it as they have the core's doors.
``__init__.py``
    ``PUBLIC``: names of ``jobs`` and of its packages (``testing.assert_idempotent``), and in which of its modules each
    is. ``PRIVATE``: what it uses of Celery, kombu, billiard and Django that is private.
    ``TASKS``: names of tasks of its own, which are not the project's.
    ``PART_OF``: the extensions without which it takes no part. Of an app of its own also ``SETTINGS``: the keys of
    ``settings.JOBS`` that mean nothing without it.
``settings.py``
    ``Settings``, a frozen dataclass: its keys of ``settings.JOBS``; ``RULES``: what they must be, as a pattern or a
    function, and the words for it; ``problems(given)``, a function that says what is wrong with all settings.
    Read with the settings, which may be before there are apps: it imports nothing of ``jobs``.
``early.py``
    what has to be there as soon as ``jobs`` is imported: it imports no models and no settings.
``models.py``
    its tables, and ``COLUMNS`` and ``INDEXES`` that it adds to a job's row: a call may say such a column, and a claim
    reads it; ``OPTIONS``: which of them are options of a call, and how these may look. Read with the core's models.
``admin.py``, ``checks.py``, ``commands.py``, ``rules.py``, ``tasks.py``, ``template_tags.py``, ``urls.py``
    its pages, system checks, subcommands of ``manage.py jobs``, rules of ``verify``, tasks, template tags and filters,
    and URLs; read with the core's. What has the admin reads the pages, and what has ``manage.py jobs`` the subcommands.
``operator.py``
    its problems and their ``KINDS``, ``status`` and ``metrics``; the operator's room reads it.
``actions.py``
    what else people may do to jobs; read with the operations.
``templates``
    what its pages ``render``. Django looks for templates in the folders of apps only.
``apps.py``
    an :class:`OwnApp`: it is a Django app of its own, with its label, tables and migrations, and takes part if its name
    is in ``INSTALLED_APPS``. All other extensions are parts of the app ``jobs``, and always take part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from jobs.doors import Extension

HOME = Path(__file__).parent

_NOTHING = nullcontext()


def folders() -> dict[str, Path]:
    """All extensions: their dotted names, and where each is."""
    found = sorted(path.parent for place in ("*", "contrib/*") for path in HOME.glob(f"{place}/doors.py"))
    return {".".join([str(__package__), *folder.relative_to(HOME).parts]): folder for folder in found}


def begin() -> None:
    """Read what is there early."""
    for package, folder in folders().items():
        if (folder / "early.py").exists():
            import_module(f"{package}.early")


@cache
def present() -> dict[str, Path]:
    """The extensions that take part."""
    apps.check_apps_ready()
    own_app = {name for name, folder in folders().items() if (folder / "apps.py").exists()}
    found = {name: folder for name, folder in folders().items() if name not in own_app or apps.is_installed(name)}
    while lost := [name for name in found if not set(getattr(import_module(name), "PART_OF", ())) <= found.keys()]:
        for name in lost:
            del found[name]
    return found


class OwnApp(AppConfig):
    """An extension that is a Django app of its own."""

    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        # Its models import those of ``jobs``, and not the other way round. INSTALLED_APPS may name it before ``jobs``.
        import_module(f"{__package__}.models")
        super().import_models()


def app_configs() -> list[AppConfig]:
    """The app ``jobs``, and the extensions that are apps of their own."""
    return [each for each in apps.get_app_configs() if each.name == __package__ or each.name in present()]


def need(name: str) -> None:
    """Raise ``ImproperlyConfigured`` if an extension that is an app of its own is not installed."""
    if name not in present():
        cure = f"add {name!r} to INSTALLED_APPS, and run manage.py migrate"
        raise ImproperlyConfigured(f"{name} is not installed: {cure}")


def settings() -> list[ModuleType]:
    """What each reads of ``settings.JOBS``, whether it takes part or not. Needs no apps."""
    found = (name for name, folder in folders().items() if (folder / "settings.py").exists())
    return [import_module(f"{name}.settings") for name in found]


def modules(name: str) -> Iterator[ModuleType]:
    """One file of each extension, where it has that file."""
    for package, folder in present().items():
        if (folder / f"{name}.py").exists():
            yield import_module(f"{package}.{name}")


@cache
def instances() -> tuple[Extension, ...]:
    found = [each for module in modules("doors") for each in vars(module).values() if isinstance(each, type)]
    return tuple(each() for each in found if issubclass(each, Extension) and each is not Extension)


@cache
def through(door: str) -> tuple[Any, ...]:
    """What the extensions have for one door, in the order of their names."""
    return tuple(getattr(each, door) for each in instances() if door in _own(type(each)))


def around(door: str, *given: Any) -> AbstractContextManager[Any]:
    """The contexts that extensions have for one door, as one."""
    found = through(door)
    if len(found) > 1:
        return _around(found, given)
    return found[0](*given) if found else _NOTHING


@contextmanager
def _around(found: Sequence[Any], given: Any) -> Iterator[None]:
    with ExitStack() as entered:
        for each in found:
            entered.enter_context(each(*given))
        yield


def merged(door: str) -> dict[str, Any]:
    """The mappings that the extensions have for one door, as one. ``ValueError``: two of them have the same name."""
    found: dict[str, Any] = {}
    for part in through(door):
        if twice := found.keys() & part.keys():
            raise ValueError(f"two extensions have {', '.join(map(str, twice))} for the door {door!r}")
        found |= part
    return found


@cache
def instead(own: Any) -> Any:
    """What an extension put in place of a class or a function of the core.

    If several replace a class, one class that inherits from all theirs.
    """
    name = f"{own.__module__}.{own.__name__}"
    found = [import_string(part[name]) for part in through("instead") if name in part]
    if len(found) > 1 and not all(isinstance(each, type) for each in found):
        raise TypeError(f"{len(found)} extensions replace {name}, and of several only classes can be made one")
    return type(own.__name__, tuple(found), {}) if len(found) > 1 else (found or [own])[0]


def _own(kind: type[Extension]) -> set[str]:
    return {name for each in kind.mro() if each not in (Extension, object) for name in vars(each)}


@cache
def public(package: str) -> dict[str, str]:
    """The names of a package that extensions have, and the module of each. Needs no apps."""
    found = {}
    for folder in folders():
        for path, module in getattr(import_module(folder), "PUBLIC", {}).items():
            owner, _, name = f"{__package__}.{path}".rpartition(".")
            if owner == package:
                found[name] = f"{folder}.{module}"
    return found
