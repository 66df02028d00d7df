"""Write the parts of the documentation that the code says: ``python docs/generate.py``; ``--check`` only compares.

A page holds a part between ``<!-- made from the code: NAME -->`` and ``<!-- end -->``.
tests/acceptance/test_docs.py compares.
"""

from __future__ import annotations

import ast
import html
import inspect
import os
import re
import sys
import textwrap
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
    from jobs import extensions

    of_extensions = (Path(str(each.__file__)).relative_to(ROOT) for each in extensions.settings())
    for file in ["jobs/conf/__init__.py", *map(str, of_extensions)]:
        for name, _, default, says in comments(file, r"    ([A-Z_]+): (.+?) = (.+)"):
            lines.append(f"| `{name}` | {_default(name, default)} | {says} |")
    return lines


def _default(name: str, source: str) -> str:
    from jobs.conf import every

    value = getattr(every()(), name)
    if isinstance(value, dict | list | tuple):
        return f"`{list(value) if isinstance(value, tuple) else value}`"
    if isinstance(value, float):
        whole, days = f"{value:g}", value / 86400
        return f"{days:g} days" if days >= 1 else f"{whole} s"
    return f"`{value!r}`" if not isinstance(value, int) else str(value)


def options() -> list[str]:
    from jobs import extensions
    from jobs.task import Task

    lines = table("option", "", "what it says")
    for kind in (Task, *(type(each) for each in extensions.instances())):
        text = inspect.cleandoc(kind.__doc__ or "").partition("come on top:\n")[2].partition("\nRaises")[0]
        for name, values, says in re.findall(r"^(\w+) \((.+)\):\n((?:    .+\n?)+)", text, re.M):
            lines.append(f"| `{name}` | {markdown(values)} | {markdown(says)} |")
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
    return lines + [
        f"| `{name}` | {says} |" for name, says in comments("jobs/signals/__init__.py", r"(\w+) = JobSignal\(")
    ]


def checks() -> list[str]:
    from jobs.contrib.checks.system import TEXTS

    def filled(text: str) -> str:
        """With the names of what is filled in."""
        text = text.replace("{{", "\1").replace("}}", "\2").replace("*", "\\*").replace("__", "\\_\\_")
        return re.sub(r"{(\w+)[^}]*}", r"*\1*", text).replace("\1", "{").replace("\2", "}")

    return table("id", "what it says", "the cure") + [
        f"| `{key}` | {filled(text)} | {filled(cure)} |" for key, (text, cure) in sorted(TEXTS.items())
    ]


def metrics() -> list[str]:
    from jobs.contrib.operator.metrics import families

    rows = sorted(families(), key=lambda family: family[0].endswith("_total"))
    return table("metric", "labels", "what it counts") + [
        f"| `{name}` | {', '.join(f'`{each}`' for each in labels)} | {text} |" for name, text, labels, _ in rows
    ]


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
    return ", ".join(f"{each} {name}" for each in (flag, said.get("also")) if each)


def files() -> list[str]:
    """The rooms, each file with the first sentence of its docstring."""
    lines = table("file", "what it is")
    for path in sorted((ROOT / "jobs").rglob("*.py"), key=lambda path: (len(path.parts) > len(ROOT.parts) + 2, path)):
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        if said and "migrations" not in path.parts:
            lines.append(f"| `{path.relative_to(ROOT)}` | {markdown(said.partition(chr(10))[0])} |")
    return lines


def extensions() -> list[str]:
    """The extensions, each with the first sentence of its package."""
    lines = table("extension", "what it is")
    for path in sorted((ROOT / "jobs").rglob("doors.py")):
        if path.parent.name != "jobs":
            said = ast.get_docstring(ast.parse((path.parent / "__init__.py").read_text())) or ""
            lines.append(f"| `{path.parent.relative_to(ROOT)}` | {markdown(said.partition(chr(10))[0])} |")
    return lines


#: Of the picture of the house: a box and the space around it, in pixels; the lines of a summary, in characters.
WIDE, HIGH, GAP, LINE = 178, 54, 26, 32


def picture() -> str:
    """The rooms on their floors, as SVG. An arrow is an import that no other way of arrows says already."""
    from tests.acceptance.test_house import HOME, floors, house

    rooms, floor_of = house(), floors()
    way: dict[str, set[str]] = {}
    for room in sorted(rooms, key=floor_of.__getitem__):
        way[room] = rooms[room].union(*(way[below] for below in rooms[room]))
    rows = [sorted(each for each in rooms if floor_of[each] == n) for n in range(max(floor_of.values()), 0, -1)]
    width = max(map(len, rows)) * (WIDE + GAP) + GAP
    at = {
        room: (width / 2 + (n - len(row) / 2) * (WIDE + GAP) + GAP / 2, GAP + line * (HIGH + GAP))
        for line, row in enumerate(rows)
        for n, room in enumerate(row)
    }
    arrows, boxes = [], []
    for room, (x, y) in at.items():
        for below in sorted(rooms[room]):
            if not any(below in way[other] for other in rooms[room] - {below}):
                to_x, to_y = at[below]
                arrows.append(f'<path d="M{x + WIDE / 2:g} {y + HIGH}L{to_x + WIDE / 2:g} {to_y - 3:g}"/>')
        path = HOME / room / "__init__.py"
        said = ast.get_docstring(ast.parse((path if path.exists() else HOME / f"{room}.py").read_text())) or ""
        summary = textwrap.wrap(
            markdown(said.partition("\n")[0]).replace("`", ""), LINE, max_lines=2, placeholder=" ..."
        )
        name = "jobs" if room == "__init__" else room
        boxes.append(f'<rect x="{x:g}" y="{y:g}" width="{WIDE}" height="{HIGH}" rx="5"/>')
        boxes.append(f'<text class="name" x="{x + WIDE / 2:g}" y="{y + 17:g}">{name}</text>')
        for n, line in enumerate(summary):
            boxes.append(f'<text x="{x + WIDE / 2:g}" y="{y + 32 + 13 * n:g}">{html.escape(line)}</text>')
    high = len(rows) * (HIGH + GAP) + GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {high}"',
            'font-family="sans-serif" font-size="10">',
            "<style>rect{fill:#eef3fb;stroke:#7b93bd}path{stroke:#9aa5b5;fill:none;marker-end:url(#tip)}",
            "text{text-anchor:middle;fill:#333}.name{font-weight:bold;font-size:13px;fill:#123}</style>",
            '<marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" markerHeight="6" orient="auto">',
            '<polygon points="0,0 6,3 0,6" fill="#9aa5b5"/></marker>',
            f'<rect x="0" y="0" width="{width}" height="{high}" style="fill:#fff;stroke:none"/>',
            *arrows,
            *boxes,
            "</svg>\n",
        ]
    )


def llms() -> str:
    """``llms.txt``: all pages of the site, for programs (llmstxt.org)."""
    import yaml

    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    lines += ["Read [what a program has to know](howto/agents.html) before you write a task.", "", "## Start", ""]
    for entry in config["nav"]:
        [(name, pages)] = entry.items()
        if not isinstance(pages, str):
            lines += ["", f"## {name}", ""]
        for each in [entry] if isinstance(pages, str) else pages:
            [(title, path)] = each.items()
            lines.append(f"- [{title}]({path.removesuffix('.md')}.html)")
    return "\n".join([*lines, ""])


PARTS: dict[str, Callable[[], list[str]]] = {
    each.__name__: each for each in (settings, options, errors, signals, checks, metrics, commands, files, extensions)
}


def generated(page: str) -> str:
    """The page with its parts as the code says them."""
    return PART.sub(lambda found: "\n".join([found[1].rstrip(), *PARTS[found[2]](), found[3]]), page)


def stale() -> dict[Path, str]:
    """The pages that say something else than the code, and what they should be."""
    pages = {path: generated(path.read_text()) for path in sorted(DOCS.rglob("*.md"))}
    pages[DOCS / "images" / "house.svg"] = picture()
    pages[DOCS / "llms.txt"] = llms()
    return {path: new for path, new in pages.items() if not path.exists() or path.read_text() != new}


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
