"""Write the parts of the documentation that the code says: ``python docs/generate.py``; ``--check`` only compares.

A page holds a part between ``<!-- made from the code: NAME -->`` and ``<!-- end -->``. tests/test_docs.py compares.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PART = re.compile(r"(<!-- made from the code: (\w+) -->\n).*?(<!-- end -->)", re.S)


def markdown(text: str) -> str:
    """A comment or docstring of ours: its reST roles and double backticks become single ones."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    return " ".join(text.split()).replace("|", "\\|")


def table(*head: str) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]


def comments(path: str, pattern: str) -> list[tuple[str, ...]]:
    """What ``#:`` comments say, before lines of a pattern: its groups, then the comment."""
    found = re.findall(rf"((?:^ *#: .*\n)+)^ *{pattern}", (ROOT / path).read_text(), re.M)
    return [(*rest, markdown(re.sub(r"^ *#: ", "", said, flags=re.M))) for said, *rest in found]


def settings() -> list[str]:
    lines = table("key", "default", "what it says")
    for name, _, default, says in comments("jobs/conf/__init__.py", r"([A-Z_]+): (.+?) = (.+)"):
        lines.append(f"| `{name}` | {_default(name, default)} | {says} |")
    return lines


def _default(name: str, source: str) -> str:
    from jobs.conf import Settings

    value = getattr(Settings(), name)
    if isinstance(value, dict | list | tuple):
        return f"`{list(value) if isinstance(value, tuple) else value}`"
    if isinstance(value, float):
        whole, days = f"{value:g}", value / 86400
        return f"{days:g} days" if days >= 1 else f"{whole} s"
    return f"`{value!r}`" if not isinstance(value, int) else str(value)


def options() -> list[str]:
    from jobs.task import Task

    lines = table("option", "", "what it says")
    text = inspect.cleandoc(Task.__doc__ or "").partition("come on top:\n")[2].partition("\nRaises")[0]
    for name, kind, says in re.findall(r"^(\w+) \((.+)\):\n((?:    .+\n?)+)", text, re.M):
        lines.append(f"| `{name}` | {markdown(kind)} | {markdown(says)} |")
    return lines


def errors() -> list[str]:
    from jobs import errors

    lines = table("exception", "what it says")
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and kind.__module__ == errors.__name__ and not name.startswith("_"):
            lines.append(f"| `{name}` | {markdown((inspect.getdoc(kind) or '').partition('Parameters:')[0])} |")
    return lines


def signals() -> list[str]:
    lines = table("signal", "when, and what a receiver gets besides `job` and `using`")
    return lines + [f"| `{name}` | {says} |" for name, says in comments("jobs/signals.py", r"(\w+) = JobSignal\(")]


def checks() -> list[str]:
    from jobs.checks import _TEXTS

    def filled(text: str) -> str:
        """With the names of what is filled in."""
        text = text.replace("{{", "\1").replace("}}", "\2").replace("*", "\\*").replace("__", "\\_\\_")
        return re.sub(r"{(\w+)[^}]*}", r"*\1*", text).replace("\1", "{").replace("\2", "}")

    return table("id", "what it says", "the cure") + [
        f"| `{key}` | {filled(text)} | {filled(cure)} |" for key, (text, cure) in sorted(_TEXTS.items())
    ]


def metrics() -> list[str]:
    from jobs.inspection import census, demand

    tree = ast.parse((ROOT / "jobs/inspection/metrics.py").read_text())
    labels, families = {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "(one, node, call)":
            labels |= dict(zip(("one", "node", "call"), map(ast.literal_eval, node.value.elts), strict=True))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "handler":
            labels["handler"] = ast.literal_eval(node.value)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in ("gauges", "counters"):
            suffix = "_total" if ast.unparse(node.target) == "counters" else ""
            families += [(suffix, family.elts) for family in node.value.elts]
    lines = table("metric", "labels", "what it counts")
    for suffix, (name, says, names, _) in families:
        found = eval(ast.unparse(names), {"__builtins__": {}}, labels)
        text = eval(ast.unparse(says), {"census": census, "demand": demand, "__builtins__": {}})
        lines.append(f"| `{name.value}{suffix}` | {', '.join(f'`{each}`' for each in found)} | {text} |")
    return lines


def commands() -> list[str]:
    from jobs.management.commands.jobs import Command

    lines: list[str] = []
    for each in Command.subcommands.values():
        description, _, examples = each.text.partition("examples:\n")
        lines += ["", f"## {each.name}", "", description.strip().replace("*", "\\*").replace("<", "&lt;"), ""]
        lines += table("argument", "") if each.options else []
        for flag, said in each.options:
            text = re.sub(r"%\(default\)[a-z]", f"{said.get('default')}", said["help"]).replace("*", "\\*")
            lines.append(f"| `{_usage(flag, said)}` | {text} |")
        if examples:
            lines += [
                "",
                "```sh",
                *(line[2:] if line.startswith("  ") else line for line in examples.splitlines()),
                "```",
            ]
    return [*lines, ""]


def _usage(flag: str, said: dict[str, Any]) -> str:
    """As argparse would show it."""
    if not flag.startswith("-"):
        return str(said.get("metavar", flag)) + (" ..." if said.get("nargs") in ("*", "+") else "")
    if said.get("action", "store") != "store":
        return flag
    name = said.get("metavar") or (said.get("type") is int and "N") or flag.strip("-").upper()
    return f"{flag} {name}"


def files() -> list[str]:
    """The rooms, each file with the first sentence of its docstring."""
    lines = table("file", "what it is")
    for path in sorted((ROOT / "jobs").rglob("*.py"), key=lambda path: (len(path.parts) > len(ROOT.parts) + 2, path)):
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        if said and "migrations" not in path.parts:
            lines.append(f"| `{path.relative_to(ROOT)}` | {markdown(said.partition(chr(10))[0])} |")
    return lines


PARTS: dict[str, Callable[[], list[str]]] = {
    each.__name__: each for each in (settings, options, errors, signals, checks, metrics, commands, files)
}


def generated(page: str) -> str:
    """The page with its parts as the code says them."""
    return PART.sub(lambda found: "\n".join([found[1].rstrip(), *PARTS[found[2]](), found[3]]), page)


def stale() -> dict[Path, str]:
    """The pages that say something else than the code, and what they should be."""
    pages = {path: path.read_text() for path in sorted(DOCS.rglob("*.md"))}
    return {path: new for path, old in pages.items() if (new := generated(old)) != old}


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    import django

    django.setup()
    for page, text in stale().items():
        if "--check" in sys.argv:
            sys.exit(f"{page.relative_to(ROOT)} is not what the code says: python docs/generate.py")
        page.write_text(text)
        print(page.relative_to(ROOT))  # noqa: T201
