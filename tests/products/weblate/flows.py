"""What users of Weblate cause, and what its workers leave: run in its own environment, with its own settings.

``python flows.py FILE REMOTE URL`` lets each flow happen beside a worker, and writes what each left as JSON: the same
for stock Celery and for jobs. An id, a time or a random name is in none of it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import django

django.setup()

from celery import states  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core.cache import cache  # noqa: E402
from django.test import Client  # noqa: E402
from redis import Redis  # noqa: E402
from weblate.auth.models import User  # noqa: E402
from weblate.checks.models import Check  # noqa: E402
from weblate.memory.models import Memory  # noqa: E402
from weblate.metrics.models import Metric  # noqa: E402
from weblate.trans.models import Alert, Change, Component, PendingUnitChange, Project, Translation, Unit  # noqa: E402
from weblate.utils.celery import app, get_queue_list  # noqa: E402
from weblate.utils.tasks import ping  # noqa: E402

# Else only what a flow has imported is periodic here.
app.loader.import_default_modules()

IS_OURS = "jobs" in settings.INSTALLED_APPS
REMOTE, URL = Path(sys.argv[2]), sys.argv[3]
BROKER = Redis.from_url(settings.CELERY_BROKER_URL)
API = "/api/components/demo/app"


def wait_for(condition: Callable[[], Any], what: str, timeout: float = 120) -> Any:
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.2)
    return found


def is_quiet() -> bool:
    """Whether no worker has anything to do now: what is put off for later does not count."""
    if IS_OURS:
        from jobs.models import Job

        return not Job.objects.filter(state__in=("ready", "running")).exists()
    if any(BROKER.llen(queue) for queue in get_queue_list()):
        return False
    inspect = app.control.inspect(destination=["w@test"], timeout=20)
    return not any((inspect.active() or {"": [1]}).values()) and not any((inspect.reserved() or {"": [1]}).values())


def settle() -> None:
    def twice() -> bool:
        if not is_quiet():
            return False
        time.sleep(0.3)
        return is_quiet()

    wait_for(twice, "quiet workers")


def failures() -> dict[str, int]:
    """The kinds of errors of tasks that have failed so far."""
    if IS_OURS:
        from jobs.models import Job

        found = [(each.error or {}).get("type", "") for each in Job.objects.filter(state="failed")]
        return Counter(each.rpartition(".")[2] for each in found)
    keys = list(BROKER.scan_iter("celery-task-meta-*"))
    results = [json.loads(each) for each in BROKER.mget(keys) if each] if keys else []
    return Counter(each["result"]["exc_type"] for each in results if each["status"] == states.FAILURE)


# The user


def call(method: str, path: str, data: Any = None, **headers: str) -> Any:
    client = Client(HTTP_HOST="weblate.example")
    user = User.objects.get(username="admin")
    given = {"HTTP_AUTHORIZATION": f"Token {user.auth_token.key}"} | headers
    kind = {} if data is None else {"data": json.dumps(data), "content_type": "application/json"}
    answer = getattr(client, method)(path, **kind, **given)
    assert answer.status_code < 300, (method, path, answer.status_code, answer.content[:2000])
    return answer.json() if answer.content else None


def git(*words: str, at: Path) -> str:
    # The daemon's repository, and Weblate's, belong to the same user.
    command = ["git", "-c", "safe.directory=*", "-c", "user.name=Dev", "-c", "user.email=dev@example.com", *words]
    return subprocess.run(command, cwd=at, check=True, capture_output=True, text=True).stdout.strip()


def clone(component: Component) -> Path:
    return Path(component.full_path)


def log(at: Path, revision: str = "HEAD") -> list[list[str]]:
    """The author, the subject and the files of each commit."""
    shown = git("log", "--format=%x00%an|%s", "--name-only", "--reverse", revision, at=at)
    return [[line for line in each.splitlines() if line] for each in shown.split("\0")[1:]]


def app_of() -> Component:
    return Component.objects.get(project__slug="demo", slug="app")


def unit(language: str, source: str, component: str = "app") -> Unit:
    return Unit.objects.get(
        translation__language__code=language,
        translation__component__slug=component,
        translation__component__project__slug="demo",
        source=source,
    )


def mails() -> list[list[str]]:
    """The receiver, and the subject, of each mail so far."""
    found = []
    folder = Path(settings.EMAIL_FILE_PATH)
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        for part in path.read_bytes().split(b"-" * 79 + b"\n"):
            if part.strip():
                mail = message_from_bytes(part.lstrip(), policy=policy.default)
                found.append([str(mail["To"]), str(mail["Subject"])])
    return sorted(found)


def strings() -> dict[str, Any]:
    """Each translation's strings, and how many are translated as its page says."""
    result = {}
    for each in Translation.objects.filter(component__project__slug="demo").order_by("pk"):
        rows = each.unit_set.order_by("position").values_list("source", "target", "state")
        result[f"{each.component.slug}/{each.language.code}"] = [
            each.stats.translated,
            each.stats.all,
            list(map(list, rows)),
        ]
    return dict(sorted(result.items()))


def changes(since: int) -> dict[str, int]:
    return Counter(each.get_action_display() for each in Change.objects.filter(pk__gt=since))


# The flows, in this order: each goes on where the one before it has ended


def a_project_is_added() -> Any:
    call("post", "/api/projects/", {"name": "Demo", "slug": "demo", "web": "https://demo.example/"})
    settle()
    project = Project.objects.get()
    bob = User.objects.get(username="bob")
    bob.profile.watched.add(project)
    return {
        "groups": sorted(project.defined_groups.values_list("name", flat=True)),
        "queue": ping.delay().get(60)["vcs"],
    }


def a_component_is_added() -> Any:
    data = {
        "name": "App",
        "slug": "app",
        "vcs": "git",
        "repo": URL,
        "push": URL,
        "branch": "main",
        "filemask": "locale/*.po",
        "new_base": "locale/app.pot",
        "file_format": "po",
        "new_lang": "add",
        "license": "MIT",
    }
    call("post", "/api/projects/demo/components/", data)
    wait_for(lambda: Translation.objects.filter(component__slug="app").count() >= 3, "translations")
    settle()
    # Two tasks race for the repository of its glossary, with stock Celery as well, and what needs it later would fail.
    call("delete", "/api/components/demo/glossary/")
    settle()
    return {"strings": strings(), "is_at": log(clone(app_of())), "files": git("ls-files", at=clone(app_of())).split()}


def a_string_is_translated() -> Any:
    row = unit("de", "Hello")
    call("patch", f"/api/units/{row.pk}/", {"state": 20, "target": ["Hallo"]})
    settle()
    return {
        "strings": strings()["app/de"],
        "pending": PendingUnitChange.objects.count(),
        "memory": sorted(Memory.objects.filter(source="Hello").values_list("target", flat=True)),
    }


def it_is_committed() -> Any:
    call("post", f"{API}/repository/", {"operation": "commit", "background": True})
    settle()
    at = clone(app_of())
    is_translated = 'msgid "Hello"\nmsgstr "Hallo"' in (at / "locale/de.po").read_text()
    return {"log": log(at), "pending": PendingUnitChange.objects.count(), "file": is_translated}


def it_is_pushed() -> Any:
    call("post", f"{API}/repository/", {"operation": "push", "background": True})
    settle()
    return {
        "log": log(REMOTE, "main"),
        "state": {k: call("get", f"{API}/repository/")[k] for k in ("needs_push", "needs_commit")},
    }


def a_webhook_tells_of_a_commit() -> Any:
    work = REMOTE.parent / "developer"
    git("clone", "-q", str(REMOTE), str(work), at=REMOTE.parent)
    for name in ("app.pot", "de.po", "cs.po"):
        path = work / "locale" / name
        path.write_text(path.read_text() + '\nmsgid "Goodbye, %s"\nmsgstr ""\n')
    git("commit", "-qam", "A new string", at=work)
    git("push", "-q", "origin", "main", at=work)
    payload = {
        "ref": "refs/heads/main",
        "repository": {
            "full_name": "x/demo",
            "html_url": URL,
            "url": URL,
            "git_url": URL,
            "clone_url": URL,
            "ssh_url": URL,
            "name": "demo",
            "owner": {"name": "x"},
        },
    }
    last = Change.objects.latest("pk").pk
    told = call("post", "/hooks/github/", payload, HTTP_X_GITHUB_EVENT="push")
    settle()
    return {"told": told["message"], "strings": strings(), "log": log(clone(app_of())), "changes": changes(last)}


def who_watches_gets_mail() -> Any:
    before = Counter(map(tuple, mails()))
    row = unit("cs", "Goodbye, %s")
    call("patch", f"/api/units/{row.pk}/", {"state": 20, "target": ["Nashledanou, %s"]})
    settle()
    return sorted(set((Counter(map(tuple, mails())) - before).elements()))


def checks_are_calculated_again() -> Any:
    row = unit("de", "Goodbye, %s")
    call("patch", f"/api/units/{row.pk}/", {"state": 20, "target": ["Tschüss"]})
    call("patch", f"{API}/", {"check_flags": "python-format,max-length:3"})
    settle()
    found = Check.objects.values_list("unit__translation__language__code", "unit__source", "name")
    return {"checks": sorted(map(list, found)), "state": unit("de", "Goodbye, %s").state}


def another_component_is_translated_by_itself() -> Any:
    data = {"name": "Second", "slug": "second", "repo": "weblate://demo/app", "filemask": "other/*.po"}
    data |= {"new_base": "other/app.pot", "file_format": "po", "license": "MIT"}
    call("post", "/api/projects/demo/components/", data)
    wait_for(lambda: Translation.objects.filter(component__slug="second").count() >= 2, "translations")
    settle()
    before = strings()["second/de"]
    data = {"mode": "translate", "q": "state:<translated", "auto_source": "others", "threshold": 80, "background": True}
    told = call("post", "/api/translations/demo/second/de/autotranslate/", data)
    settle()
    task = call("get", told["task_url"])
    return {"before": before, "after": strings()["second/de"], "told": [task["completed"], task["progress"]]}


def a_repository_that_is_gone_is_an_alert() -> Any:
    gone = REMOTE.with_name("gone.git")
    REMOTE.rename(gone)
    try:
        call("post", f"{API}/repository/", {"operation": "pull", "background": True})
        settle()
        found = sorted(Alert.objects.filter(component__slug="app").values_list("name", flat=True))
    finally:
        gone.rename(REMOTE)
    call("post", f"{API}/repository/", {"operation": "pull", "background": True})
    settle()
    return {"gone": found, "back": sorted(Alert.objects.filter(component__slug="app").values_list("name", flat=True))}


def a_project_is_backed_up() -> Any:
    told = call("post", "/api/projects/demo/backups/")
    settle()
    (path,) = (Path(settings.DATA_DIR) / "projectbackups").rglob("*.zip")
    names = [re.sub(r"(objects|pack)/.*", r"\1", each) for each in ZipFile(path).namelist() if "/.git/" not in each]
    return {
        "names": sorted({each for each in names if "vcs/" not in each}),
        "done": call("get", told["task_url"])["completed"],
    }


def all_that_is_periodic_runs() -> Any:
    # The entries are made when the tasks are: they are what beat, and our schedule, would call.
    app.finalize()
    before = failures()
    entries = {name: entry["task"] for name, entry in app.conf.beat_schedule.items()} | {
        name: entry.task for name, entry in _scheduled().items()
    }
    made = {name: app.tasks[task].delay(*_scheduled()[name].args) for name, task in sorted(entries.items())}
    ended = {name: _state(result) for name, result in made.items()}
    settle()
    return {
        "states": ended,
        "failed": dict(failures() - before),
        "metrics": sorted(Counter(Metric.objects.values_list("scope", flat=True)).items()),
        "backups": sorted(each.name for each in (Path(settings.DATA_DIR) / "backups").iterdir()),
    }


def _state(result: Any) -> str:
    wait_for(result.ready, "a periodic task")
    return f"{result.state} {result.result if result.failed() else ''}".strip()


def _scheduled() -> dict[str, Any]:
    from celery.beat import ScheduleEntry

    # add_periodic_task() puts them there as the app is finalized.
    return {
        name: entry if isinstance(entry, ScheduleEntry) else ScheduleEntry(app=app, name=name, **entry)
        for name, entry in app.conf.beat_schedule.items()
        if name != "celery.backend_cleanup"
    }


def the_schedule_is_kept() -> Any:
    """The heartbeat is due every two minutes, and nobody has called it but the schedule."""
    cache.delete("celery_heartbeat")
    wait_for(lambda: cache.get("celery_heartbeat"), "the heartbeat", 150)
    return "it beats"


def a_component_is_removed() -> Any:
    at = clone(app_of())
    call("delete", "/api/components/demo/second/")
    wait_for(lambda: not Component.objects.filter(slug="second").exists(), "the removal")
    settle()
    call("delete", "/api/components/demo/app/")
    wait_for(lambda: not Component.objects.filter(slug="app").exists(), "the removal")
    settle()
    return {"units": Unit.objects.filter(translation__component__slug="app").count(), "clone": at.exists()}


def a_project_is_removed() -> Any:
    call("delete", "/api/projects/demo/")
    wait_for(lambda: not Project.objects.exists(), "the removal")
    settle()
    backups = list((Path(settings.DATA_DIR) / "projectbackups").rglob("*.zip"))
    return {"units": Unit.objects.count(), "memory": Memory.objects.count(), "backups": len(backups)}


FLOWS = [
    a_project_is_added,
    a_component_is_added,
    a_string_is_translated,
    it_is_committed,
    it_is_pushed,
    a_webhook_tells_of_a_commit,
    who_watches_gets_mail,
    checks_are_calculated_again,
    another_component_is_translated_by_itself,
    a_repository_that_is_gone_is_an_alert,
    a_project_is_backed_up,
    all_that_is_periodic_runs,
    the_schedule_is_kept,
    a_component_is_removed,
    a_project_is_removed,
]


def main(path: str) -> None:
    from rest_framework.authtoken.models import Token

    admin = User.objects.create_superuser("admin", "admin@example.com", "of-a-test-11")
    Token.objects.get_or_create(user=admin, defaults={"key": "wlu_" + "a" * 30})
    bob = User.objects.create_user("bob", "bob@example.com", "of-a-test-12")
    for name in ("NewStringNotificaton", "TranslatedStringNotificaton", "NewAlertNotificaton"):
        bob.subscription_set.create(scope=10, notification=name, frequency=1)
    bob.profile.languages.add(*_languages())
    done: dict[str, Any] = {}
    for flow in FLOWS:
        started, failed = time.monotonic(), failures()
        try:
            done[flow.__name__] = {"left": flow()}
        except Exception:
            done[flow.__name__] = {"error": traceback.format_exc()}
        done[flow.__name__]["failed"] = dict(Counter(failures()) - Counter(failed))
        sys.stdout.write(f"{flow.__name__} {time.monotonic() - started:.1f} s\n")
        Path(path).write_text(json.dumps(done, indent=1, sort_keys=True, default=str))


def _languages() -> list[Any]:
    from weblate.lang.models import Language

    return list(Language.objects.filter(code__in=("de", "cs")))


main(sys.argv[1])
