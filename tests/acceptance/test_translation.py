"""What people read can be translated: the German catalogue is whole, and no page shows a text beside it."""

from __future__ import annotations

import ast
import contextlib
import datetime
import gettext
import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import django
import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import CommandError, call_command
from django.db import connection
from django.urls import reverse
from django.utils import timezone, translation
from django.utils.crypto import salted_hmac
from django.utils.text import capfirst

import jobs
from jobs.contrib.durable.models import Signal, Step
from jobs.contrib.inspection.view import SHOWN
from jobs.contrib.limits.limits import set_by_hand
from jobs.contrib.operations import by_hand
from jobs.contrib.operations.actions import OPERATIONS
from jobs.contrib.operator import problems, status
from jobs.contrib.operator.statistics import MINUTE
from jobs.contrib.pages.html import url_of
from jobs.contrib.pauses import pauses
from jobs.contrib.schedules import rows as schedules
from jobs.contrib.verify.verify import verify
from jobs.errors import UniqueTaken
from jobs.events.models import Event, Subscription
from jobs.lifecycle import transitions
from jobs.lifecycle.transitions import NEVER
from jobs.models import Action, Batch, Cancellation, Effect, Instance, Job, Marker, Node, Schedule
from tests.conftest import not_installed
from tests.contrib.events.rows import open_ones
from tests.contrib.operator.tallies import tally
from tests.helpers.rows import ERROR, let_heartbeat, make, make_node

APP = Path(jobs.__file__).parent
CATALOGUE = Path("locale/de/LC_MESSAGES/django.po")
#: The name of a text, with its context; of a plural with its number.
Key = str | tuple[str, int]
FIELD = re.compile(r'(msgctxt|msgid|msgid_plural|msgstr(?:\[\d\])?) (?=")')
PLACEHOLDER = re.compile(r"%\(\w+\)[a-z]|%%|%[a-z]|\{\w*\}")


def read(path: Path) -> dict[Key, tuple[str, str]]:
    """The entries of a .po file: the English text, and the other one."""
    found: dict[Key, tuple[str, str]] = {}
    for block in path.read_text().split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in block.splitlines():
            if start := FIELD.match(line):
                name, line = start[1], line[start.end() :]
            if line.startswith('"'):
                fields[name] = fields.get(name, "") + ast.literal_eval(line)
        key = "\x04".join(filter(None, (fields.get("msgctxt"), fields["msgid"])))
        if "msgid_plural" in fields:
            found[key, 0] = fields["msgid"], fields["msgstr[0]"]
            found[key, 1] = fields["msgid_plural"], fields["msgstr[1]"]
        else:
            found[key] = fields["msgid"], fields["msgstr"]
    del found[""]
    return found


@pytest.fixture(scope="module")
def german() -> dict[Key, tuple[str, str]]:
    return read(APP / CATALOGUE)


# The catalogue


def test_every_message_is_translated(german):
    assert [text for text, translated in german.values() if not translated.strip()] == []
    text = (APP / CATALOGUE).read_text()
    assert "fuzzy" not in text
    assert "#~" not in text


def test_every_marked_text_is_in_the_catalogue_and_nothing_else(german, tmp_path):
    if shutil.which("xgettext") is None:
        not_installed("xgettext (gettext)")
    copy = tmp_path / "jobs"
    shutil.copytree(APP, copy, ignore=shutil.ignore_patterns("locale", "__pycache__"))
    (copy / "locale").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-m", "django", "makemessages", "-l", "de"]
    subprocess.run(command, cwd=copy, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert set(read(copy / CATALOGUE)) == set(german)


def test_what_is_shipped_is_what_the_catalogue_compiles_to(german):
    with (APP / CATALOGUE).with_suffix(".mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    known = {key: text for key, text in compiled._catalog.items() if key != ""}
    assert known == {key: text for key, (_, text) in german.items()}


def test_what_is_filled_in_is_the_same_in_both_languages(german):
    for key, (text, translated) in german.items():
        placeholders = set(PLACEHOLDER.findall(text))
        if isinstance(key, tuple) and key[1] == 0:
            # "The one" needs no number.
            placeholders |= set(PLACEHOLDER.findall(german[key[0], 1][0])) & set(PLACEHOLDER.findall(translated))
        assert set(PLACEHOLDER.findall(translated)) == placeholders, text
        for each in ("%s", "%%", "{}"):
            assert translated.count(each) == text.count(each), text


def test_what_django_says_as_well_is_said_in_its_words(german):
    """All catalogues are one: ours would change its pages."""
    for path in ("conf", "contrib/admin", "contrib/auth"):
        with (Path(django.__file__).parent / path / "locale/de/LC_MESSAGES/django.mo").open("rb") as file:
            theirs = gettext.GNUTranslations(file)._catalog
        same = {key: text for key, (_, text) in german.items() if key in theirs}
        assert same == {key: theirs[key] for key in same}


# The pages


@pytest.fixture
def in_german(settings, admin_client):
    """The admin of a German project, and somebody who may do everything there."""
    # Nothing beats here, and on a slow machine, too, a reason is the same for a minute.
    settings.JOBS = {**settings.JOBS, "DEAD_AFTER": 60.0, "POLL_INTERVAL": 60.0}
    settings.LANGUAGE_CODE = "de"
    return admin_client


class Visible(HTMLParser):
    """The texts of a page that people see or hear; not what they wrote themselves (``pre``)."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.hidden = 0
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.hidden += tag in ("script", "style", "pre")
        names = ("title", "aria-label", "placeholder", "alt", *(("value",) if ("type", "submit") in attrs else ()))
        self.texts += [value for name, value in attrs if name in names and value]

    def handle_endtag(self, tag):
        self.hidden -= tag in ("script", "style", "pre")

    def handle_data(self, data):
        if not self.hidden and data.strip():
            self.texts.append(data.strip())


#: What a row says is English for every reader.
STORED = re.compile(r"(cancelled|killed) by hand by admin|(?<=<strong>)(Cancelled|Killed)|Killed: ")

#: Words of English sentences that are no German ones.
ENGLISH = re.compile(r"\b(the|of|and|is|it|its|are|were|by|that|which|there|has|have|had|with|this)\b", re.I)


@cache
def phrases() -> dict[str, tuple[str, re.Pattern[str]]]:
    """Texts of two words or more: their longest part without a placeholder, to look for first, and a pattern."""
    found = {}
    for source, translated in read(APP / CATALOGUE).values():
        words = PLACEHOLDER.sub(" ", source)
        if source != translated and len(re.findall(r"[A-Za-z]{2,}", words)) >= 2:
            parts = PLACEHOLDER.split(source.replace("%%", "%"))
            pattern = re.compile(rf"(?<!\w){'.+?'.join(map(re.escape, parts))}(?!\w)")
            found[source] = max(parts, key=len), pattern
    return found


def english(german: dict[Key, tuple[str, str]], page: str) -> list[str]:
    """What is left of it on a page: texts of ours of two words or more, single ones that stand alone, and sentences."""
    page = STORED.sub("", page)
    text = html.unescape(page)
    found = [source for source, (part, pattern) in phrases().items() if part in text and pattern.search(text)]
    # As they are, and as Django begins a column or a label with them.
    alone = {capfirst(source) for source, translated in german.values() if capfirst(source) != capfirst(translated)}
    return found + [each for each in Visible(page).texts if capfirst(each) in alone or ENGLISH.search(each)]


def look(german, client, url: str, *words: str, **query: str) -> str:
    response = client.get(url, query, follow=True)
    assert response.status_code == 200, url
    page = response.content.decode()
    assert english(german, page) == [], url
    text = html.unescape(page)
    assert [each for each in words if each not in text] == [], url
    return text


def admin(name: str, *args: object) -> str:
    return url_of(name, *args)


def alive(**more) -> Node:
    node = make_node(**{"tasks": ["tests.tasks.effect"], "concurrency": 2, **more})
    let_heartbeat(node)
    return node


def ago(seconds: float) -> datetime.datetime:
    return timezone.now() - datetime.timedelta(seconds=seconds)


def waiting(error: str, **more) -> Job:
    entry = {**ERROR, "type": error, "message": more.pop("message", "no")}
    return make("scheduled", run_at=ago(-7200), lease=1, error=entry, **more)


def with_a_row(state: str, model: type, row: dict, **more) -> Job:
    job = make(state, **more)
    model.objects.create(job=job.pk, **row)
    return job


def with_a_taken_key() -> Job:
    make("ready", unique_key="monday")
    return make("failed", unique_key="monday")


def in_a_copy() -> Job:
    Instance.objects.update_or_create(pk=1, defaults={"mark": "another"})
    return make("ready")


#: For each reason a job that has it.
SITUATIONS = {
    "scheduled": lambda: make("scheduled", run_at=ago(-7200)),
    "retry": lambda: waiting("ValueError", retries=2),
    "snoozed": lambda: waiting("Snooze", snoozes=1),
    "busy": lambda: waiting("Busy", snoozes=1),
    "given_back": lambda: waiting("WorkerLostError", crashes=1),
    "postponed": lambda: waiting("NotRegistered"),
    "expired": lambda: make("ready", expires_at=ago(60)),
    "queue_paused": lambda: (pauses.pause("celery", "ada", "Umzug"), make("ready"))[1],
    "not_adopted": in_a_copy,
    "no_worker": lambda: make("ready"),
    "no_consumer": lambda: (alive(queues=["mail"]), make("ready"))[1],
    "unknown_task": lambda: (alive(), make("ready", task="shop.tasks.morgen"))[1],
    "due": lambda: (alive(), make("scheduled", age=1))[1],
    "overdue": lambda: (alive(), make("scheduled", age=7200))[1],
    "in_line": lambda: (alive(), make("ready", age=5), make("ready"))[2],
    # It began ahead: on a busy machine it would soon run for long, which is another reason.
    "busy_workers": lambda: (make("running", node=alive(concurrency=1), age=-600), make("ready"))[1],
    "not_taken": lambda: (alive(), make("ready", age=7200))[1],
    "write_lock": lambda: (make("running", node=alive(), age=9), make("ready"))[1],
    "next": lambda: (alive(), make("ready"))[1],
    "old_signature": lambda: make("ready", args=[1, 2, 3]),
    "running": lambda: make("running", node=alive()),
    "ending": lambda: with_a_row("running", Cancellation, {"reason": "Umzug"}, node=alive()),
    "calling": lambda: with_a_row("running", Effect, {"name": "charge", "key": "7", "lease": 1}, node=alive()),
    "node_dead": lambda: make("running"),
    "succeeded": lambda: make("succeeded"),
    "replayed": lambda: make("succeeded", replay_of=uuid.uuid4(), marker_key="welcome:1"),
    "cancelled": lambda: make("cancelled"),
    "failed": lambda: make("failed", retries=1, errors=[ERROR, {**ERROR, "attempt": 2}]),
    "effect_parked": lambda: with_a_row(
        "failed",
        Effect,
        {"name": "charge", "key": "7", "lease": 1, "state": "parked"},
        error={**ERROR, "type": "EffectParked"},
    ),
    "waits_for_signal": lambda: make("scheduled", run_at=ago(-7200), lease=1, waits_for="signal:genehmigt:42"),
    "waits_for_children": lambda: make("scheduled", run_at=NEVER, waits_for=f"gather:{uuid.uuid4()}"),
    "sleeps": lambda: make("scheduled", run_at=ago(-7200), lease=1, waits_for="sleep:nachts"),
    "step_retry": lambda: waiting("ValueError", waits_for="step:abbuchen"),
    "unique_taken": with_a_taken_key,
    "schedule": lambda: make("ready", options={"headers": {"periodic_task_name": "nachts", "schedule_tick": "03:00"}}),
}


def why(key: object, *options: str) -> str:
    out = io.StringIO()
    with contextlib.suppress(CommandError):
        call_command("jobs", "why", str(key), *options, stdout=out)
    return out.getvalue()


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("code", SITUATIONS)
def test_every_reason_is_in_german_and_has_its_code(in_german, german, code):
    if code == "write_lock" and connection.vendor != "sqlite":
        pytest.skip("others lock rows")
    job = SITUATIONS[code]()
    page = look(german, in_german, admin("job_change", job.pk), "Warum ist er hier?", f'<li class="reason-{code}">')
    found = json.loads(why(job.pk, "--json"))
    codes = [each["code"] for each in found["reasons"]]
    assert code in codes
    assert re.findall(r'<li class="reason-(\w+)">', page) == codes
    with translation.override("en"):
        assert [each["code"] for each in json.loads(why(job.pk, "--json"))["reasons"]] == codes
    told = why(job.pk)
    assert len(re.findall(r"^\d+\. ", told, re.MULTILINE)) == len(codes)
    assert english(german, html.escape(told)) == []


@pytest.mark.django_db
@pytest.mark.parametrize("state", Job.State.values)
def test_the_page_of_a_job_in_each_state(in_german, german, state):
    job = make(state, parent_id=uuid.uuid4(), unique_key="monday", marker_key="welcome:1")
    make("ready", parent_id=job.pk)
    Marker.objects.create(key="welcome:1", kind="task", job=uuid.uuid4(), expires_at=ago(-7200))
    Effect.objects.create(name="charge", key="7", job=job.pk, lease=0)
    Action.objects.create(job=job.pk, what="retry", by="ada", why="Umzug")
    label = {"running": "läuft", "succeeded": "erfolgreich"}.get(state, "")
    look(german, in_german, admin("job_change", job.pk), "Geschichte", "Was dazugehört", "Eingriffe von Hand", label)


@pytest.mark.django_db
def test_the_schedule_in_each_of_its_states(in_german, german):
    look(german, in_german, admin("schedule_changelist"), "Zeitpläne")
    alive()
    soon, late = timezone.now() + MINUTE, ago(7200)
    states = {
        "paused": {"paused_at": late, "paused_by": "ada"},
        "undefined": {"definition": ""},
        "over": {"next_tick": None},
        "error": {"error": "TypeError: no"},
        "overdue": {"next_tick": late},
        "missed": {"missed": 3, "missed_at": late},
        "fine": {"beat_at": ago(60)},
    }
    for number, row in enumerate(states.values()):
        given = {"task": "shop.tasks.report", "timing": "0 3 * * *", "definition": "x", "defined_at": late}
        Schedule.objects.create(name=str(number), **{**given, "last_tick": late, "next_tick": soon, **row})
    found = {each["name"]: each["status"] for each in schedules.gather(True)}
    assert found == {str(number): status for number, status in enumerate(states)}
    words = ("kein Worker kennt ihn mehr", "überfällig", "hat einen Zeitpunkt versäumt", "pünktlich")
    look(german, in_german, admin("schedule_changelist"), *words)
    look(german, in_german, admin("schedule_change", "5"), "Versäumte Zeitpunkte")
    look(german, in_german, admin("dashboard"), "hat seinen Zeitpunkt", "celery beat läuft neben")


@pytest.mark.django_db
def test_the_dashboard(in_german, german):
    look(german, in_german, admin("dashboard"), "Kein Worker ist aktiv.", "In dieser Zeit endete kein Job.")
    look(german, in_german, reverse("admin:index"), "Externe Aufrufe")
    alive(stopping_at=timezone.now())
    alive(queues=[])
    alive(queues=["mail"])
    make_node()
    make("running", node=alive(queues=["slow"]), queue="slow")
    waiting("NotRegistered", queue="mail")
    make("scheduled", age=7200)
    for queue in ("mail", "celery", "slow", "nobody"):
        make("ready", queue=queue, age=36_000)
    pauses.pause("celery")
    tally(2 * MINUTE, 5)
    tally(2 * MINUTE, 5, state="failed", error="ValueError")
    Instance.objects.update_or_create(pk=1, defaults={"mark": "another"})
    for by in ("state", "task", "queue"):
        words = ("Probleme: ", "10 h", "seine Queue bedient", "ist angehalten", "Beendete Jobs, letzte")
        look(german, in_german, admin("dashboard"), *words, by=by, span="day" if by == "task" else "hour")


@pytest.mark.django_db
def test_the_rules_of_the_promise(in_german, german):
    make("cancelled", error=None)
    text = look(german, in_german, admin("verify"), "1 Verletzung.", "Ein geplanter Job, der fällig ist, wird bereit")
    rules = verify(patient=False).findings
    assert [rule.rule for rule in rules if rule.says not in text] == []
    out = io.StringIO()
    with contextlib.suppress(CommandError):
        call_command("jobs", "verify", "--json", "--no-watch", stdout=out)
    assert "a scheduled job that is due becomes ready" in out.getvalue(), "what programs read is English"


@pytest.mark.django_db(transaction=True)
def test_the_steps_of_a_job_and_the_signals(in_german, german):
    look(german, in_german, admin("signal_changelist"), "Noch keine Einträge: Signale.")
    batch = Batch.objects.create(name="b")
    waits = {"run_at": NEVER, "started_at": ago(9), "lease": 1, "waits_for": "signal:genehmigt:42"}
    job = make("scheduled", task="shop.tasks.morgen", **waits)
    steps = {
        "reservieren": {"kind": "step", "state": "done", "done_at": ago(5), "result": ["lang"] * 50, "failures": 2},
        "schlafen": {"kind": "sleep", "state": "waiting", "until": ago(1)},
        "einladen": {"kind": "gather", "state": "failed", "key": str(batch.pk), "error": ERROR},
        "genehmigt:42": {"kind": "wait", "state": "waiting", "key": "genehmigt:42", "until": ago(-99), "failures": 1},
    }
    for name, values in steps.items():
        Step.objects.create(job=job.pk, name=name, lease=1, made_at=ago(9), **values)
    for _ in range(SHOWN + 1):
        make("succeeded", batch=batch)
    words = ("Schritte", "getan", "vorbei", "wartend", "2 Fehlversuche", "1 Fehlversuch", "gibt auf:")
    words += ("und weitere", "auf das Signal genehmigt:42", "Inhalt (JSON):")
    look(german, in_german, admin("job_change", job.pk), *words)
    shown = salted_hmac("jobs.signal", "genehmigt:42").hexdigest()
    for payload, name, said in (
        ("1", "", "ein anderes Signal"),
        ("{", shown, "lässt sich nicht als JSON speichern"),
        ("1", shown, "Gesendet: Der Job"),
        ("1", shown, "kein Signal"),
    ):
        given = {"payload": payload, "for": name}
        page = html.unescape(in_german.post(admin("signal_send", job.pk), given, follow=True).content.decode())
        assert said in page
        assert english(german, page) == []
    signal = Signal.objects.get()
    look(german, in_german, admin("signal_changelist"), "genehmigt:42", "niemand hat es abgeholt")
    look(german, in_german, admin("signal_change", signal.pk), "Inhalt")
    assert LogEntry.objects.get().get_change_message() == "Sent the signal genehmigt:42"


@pytest.mark.slow
@pytest.mark.django_db
def test_lists_nodes_markers_and_calls(in_german, german):
    look(german, in_german, admin("job_changelist"), "Noch keine Einträge: Jobs.")
    look(german, in_german, admin("job_changelist"), "Erstellt seit: 'bald' ist kein Zeitpunkt", since="bald")
    jobs_made = [make(state) for state in Job.State.values]
    for query in ({}, {"state__exact": "failed"}, {"o": "ended"}, {"q": "nichts"}):
        look(german, in_german, admin("job_changelist"), "weitere Filter", **query)
    transitions.write_death(make_node().pk, "default")
    transitions.write_death(make_node().pk, "default", signed_off=True)
    for node in (alive(), alive(stopping_at=timezone.now()), alive(queues=[]), make_node(), *Node.objects.all()):
        look(german, in_german, admin("node_change", node.pk), "Letztes Lebenszeichen")
    look(german, in_german, admin("node_changelist"), "stumm", "aktiv", "stoppt", "ausgefallen", "gestoppt")
    marker = Marker.objects.create(key="welcome:1", kind="task", job=jobs_made[0].pk)
    look(german, in_german, admin("marker_changelist"), "welcome:1")
    look(german, in_german, admin("marker_change", marker.pk), "Solange dieser Marker besteht")
    look(german, in_german, admin("marker_delete", marker.pk))
    set_by_hand("@mail", 1, "1/h", "ada")
    look(german, in_german, admin("limit_changelist"), "von Hand: ada", "Eine Grenze von Hand setzen")
    look(german, in_german, admin("effect_changelist"), "Noch keine Einträge: externe Aufrufe.")
    for job, state in zip(jobs_made[2:5], ("sending", "parked", "sent"), strict=True):
        row = Effect.objects.create(name="charge", key=state, job=job.pk, lease=job.lease, state=state)
        look(german, in_german, admin("effect_change", row.pk))
    look(german, in_german, admin("effect_changelist"), "geparkt", "Ist geschehen: Der Job macht keinen Aufruf")


@pytest.mark.django_db
def test_the_events(in_german, german):
    look(german, in_german, admin("event_changelist"), "Noch keine Einträge: Ereignisse.")
    rows = open_ones()
    words = ("wartet auf ein früheres (1)", "wartet darauf, veröffentlicht zu werden (1)", "nicht behandelt")
    look(german, in_german, admin("event_changelist"), *words)
    look(german, in_german, admin("event_changelist"), "unter den neuesten 10,000 Ereignissen", way="sent")
    Subscription.objects.create(service="shop", handler="shop.tasks.award", pattern="shop.#", queue="celery")
    job = make("failed", task="shop.tasks.award", parent_id=rows["sent"].uuid)
    Event.objects.create(name="shop.more", source="shop", job=job.pk)
    Action.objects.create(job=rows["sent"].uuid, what="replay", by="ada", why="to shop")
    words = ("Was daraus folgte", "Nachliefern", "An welchen Dienst:", "0 Versuche", "Eingriffe von Hand")
    look(german, in_german, admin("event_change", rows["sent"].pk), *words)
    look(german, in_german, admin("job_change", job.pk), "das Ereignis shop.order.paid", "Ereignisse, die er gemeldet")
    look(german, in_german, admin("subscription_changelist"), "Rückstand", "Wartend")
    look(german, in_german, admin("subscription_change", Subscription.objects.get().pk), "Behandler")
    Event.objects.update(at=ago(7200))
    Event.objects.filter(received_at__isnull=False).update(received_at=ago(7200))
    words = (
        "1 Ereignis wartet seit",
        "2 Ereignisse warten darauf",
        "1 empfangenes Ereignis",
        "Ereignis hat ein Problem",
    )
    look(german, in_german, admin("dashboard"), *words)
    form = {"keys": json.dumps([str(rows["sent"].uuid)]), "to": "shop"}
    page = in_german.post(admin("event_replay"), form, follow=True).content.decode()
    assert "1 nachgeliefert: 0 Jobs angelegt" in page
    assert english(german, page) == []


# What people do


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("verb", OPERATIONS)
def test_what_is_done_is_told_in_german_and_stored_in_english(in_german, german, verb):
    state = {"retry": "failed", "delete": "failed", "kill": "running"}.get(verb, "scheduled")
    job, other = make(state), make("running")
    form = {"operation": verb, "value": {"move": "mail", "prioritize": "7"}.get(verb, ""), "why": "Umzug"}
    chosen = {"action": verb, "_selected_action": [str(job.pk), str(other.pk)], "index": "0"}
    page = in_german.post(admin("job_changelist"), chosen).content.decode()
    assert english(german, page) == []
    assert "Sind Sie sicher?" in page
    for key, words in ((other.pk, "läuft"), (job.pk, "(vorher: " if verb != "delete" else "gelöscht")):
        page = in_german.post(admin("job_operate_one", key), form, follow=True).content.decode()
        assert english(german, page) == []
        assert words in page
    entries = [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")]
    assert entries[-1].endswith(f"(was {state}) (Umzug)")
    assert [each for each in entries if "vorher" in each or "gebeten" in each] == []
    assert set(Action.objects.values_list("what", "by", "why")) <= {
        (verb, "admin", f"{form['value']}: Umzug" if form["value"] else "Umzug")
    }
    if verb == "cancel":
        assert Job.objects.get(pk=job.pk).error["message"] == "cancelled by hand by admin (Umzug)"


@pytest.mark.django_db
def test_what_is_refused_is_told_in_german(in_german, german):
    job = with_a_taken_key()
    says = OPERATIONS["retry"].attempt(job.pk).says
    assert says.startswith("bleibt im Zustand „fehlgeschlagen“: Der Job ")
    assert says.endswith("wenn jener beendet ist")
    with pytest.raises(UniqueTaken, match="does the same work"):
        by_hand.retry_by_hand(job.pk, "default")
    waits = make("ready")
    for queue, words in (("", "Bitte eine Queue nennen"), ("\0", "Bitte eine Queue nennen")):
        form = {"operation": "move", "value": queue}
        assert words in in_german.post(admin("job_operate_one", waits.pk), form, follow=True).content.decode()
    assert "in die Queue mail verschoben" in OPERATIONS["move"].told("mail").attempt(waits.pk, dry_run=True).says
    for form, words in (
        ({"verb": "pause", "queue": ""}, "mit 1 bis 255 Zeichen, keines davon NUL"),
        ({"verb": "pause", "queue": "mail"}, "Angehalten: mail"),
        ({"verb": "resume", "queue": "mail"}, "Fortgesetzt: mail"),
    ):
        page = in_german.post(admin("queue_switch"), form, follow=True).content.decode()
        assert words in html.unescape(page)
        assert english(german, page) == []


@pytest.mark.django_db
def test_the_language_of_the_reader(settings, admin_client):
    """As Django has it: the browser's, with its middleware."""
    job = make("running", node=alive())
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    pages = {
        language: admin_client.get(admin("job_change", job.pk), headers={"accept-language": language}).content.decode()
        for language in ("de", "en")
    }
    assert "Warum ist er hier?" in pages["de"]
    assert "Why is it here?" in pages["en"]
    translation.deactivate()


@pytest.mark.django_db
def test_commands_speak_the_language_of_the_project_and_json_none(settings):
    settings.LANGUAGE_CODE = "de"
    job, told = make("failed"), io.StringIO()
    call_command("jobs", "retry", str(job.pk), "--dry-run", stdout=told)
    assert told.getvalue() == f"{job.pk} würde wiederholt (jetzt: fehlgeschlagen)\n"
    assert "Er ist vor" in why(job.pk)
    assert "fehlgeschlagen, Queue celery" in why(job.pk)
    assert "It failed" in why(job.pk, "--json")
    assert translation.gettext("failed") == "fehlgeschlagen", "as before"
    out = io.StringIO()
    with pytest.raises(CommandError):
        call_command("jobs", "cancel", str(job.pk), "--json", stdout=out)
    assert json.loads(out.getvalue())["refused"][0]["why"] == "is failed: nothing to cancel"
    alive()
    pauses.pause("celery")
    [_, remark] = problems.of(status.gather(live=True))
    assert remark.line == "die Queue celery ist angehalten; manage.py jobs resume celery"
