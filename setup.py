"""Everything is in setup.cfg, but for another import name, for projects that have a package ``jobs`` of their own::

JOBS_IMPORT_NAME=txjobs pip install path/to/checkout
"""

import os
import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


def rename(directory: Path, name: str) -> None:
    """Give the package another import name, and with it another app label and other tables.

    Parameters:
        directory: holds ``jobs``, which is moved, and ``pytest_jobs.py``.
        name: of at most 13 characters, because Django's names of indexes have 30.
    """
    if not re.fullmatch("[a-z][a-z0-9_]{0,12}", name):
        raise ValueError(
            f"JOBS_IMPORT_NAME={name!r} must be a name of at most 13 small letters, digits and underscores"
        )
    package = (directory / "jobs").rename(directory / name)
    for templates in list(package.rglob("templates/jobs")):
        templates.rename(templates.parent / name)
    models = "".join(path.read_text() for path in package.rglob("*.py"))
    tables = "|".join(re.findall(r'db_table = "jobs_(\w+)"', models))
    names = [path.stem for path in package.iterdir() if path.stem.isidentifier()]
    names += re.findall(r'^    "(\w+)",$', (package / "__init__.py").read_text(), re.M)
    ours = re.compile(
        # Imports, and dotted names; the app's own name, and that of its URLs.
        rf'(?<=from )jobs(?=[ .])|(?<=import )jobs(?=[\n.])|\bjobs(?=\.(?:{"|".join(names)})\b)|(?<= name = ")jobs(?=")'
        # URLs, templates; tables, their constraints and indexes: one database may have them twice.
        rf'|(?<=app_name = ")jobs(?=")|(?<=")jobs(?=/admin/)|\bjobs(?=_(?:{tables}))'
    )
    for path in [directory / "pytest_jobs.py", *package.rglob("*")]:
        if path.suffix in (".py", ".pyi", ".html"):
            path.write_text(ours.sub(name, path.read_text()))


class Build(build_py):
    def run(self) -> None:
        # What an earlier build left, under another name.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if name := os.environ.get("JOBS_IMPORT_NAME"):
            rename(Path(self.build_lib), name)


def description(url: str) -> str:
    """The README for another page than the repository's: its links lead there.

    Parameters:
        url: of the repository's files at a version, such as ``https://host/owner/name/blob/v0.1.0``.
    """
    text = (Path(__file__).parent / "README.md").read_text()
    raw = url.replace("/blob/", "/raw/")
    text = re.sub(r"(!\[[^]]*\]\()(?!\w+:|#)", rf"\1{raw}/", text)
    return re.sub(r"(?<!!)(\[(?:[^][]|!\[[^]]*\]\([^)]*\))*\]\()(?!\w+:|#)", rf"\1{url}/", text)


if __name__ == "__main__":
    given = {}
    if repository := os.environ.get("JOBS_REPOSITORY"):
        given = {"url": repository.partition("/blob/")[0], "long_description": description(repository)}
    setup(cmdclass={"build_py": Build}, **given)
