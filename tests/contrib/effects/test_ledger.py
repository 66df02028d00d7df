"""The ledger of external calls for people: the admin, the command, and what ``verify`` says of it."""

from __future__ import annotations

import json
import re
from io import StringIO

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.contrib.effects.operations import clear_up
from jobs.contrib.operator.store import UNCOMPILED
from jobs.contrib.verify.verify import verify
from jobs.models import Cancellation, Effect, Job
from tests.helpers.plans import analyze, numbers, plan
from tests.helpers.routers import Replica
from tests.helpers.rows import ERROR, let_heartbeat, make, make_node

pytestmark = pytest.mark.django_db

LIST = reverse("admin:jobs_effect_changelist")
EVIL = "<script>alert(1)</script>"


def begun(key: str, job: str = "failed", **more) -> Effect:
    """A call, and its job in that state."""
    return Effect.objects.create(**{"name": "charge", "key": key, "job": make(job, lease=1).pk, "lease": 1, **more})


@pytest.fixture
def calls() -> dict[str, Effect]:
    """One of each status."""
    return {
        "sending": begun("a", "running"),
        "ambiguous": begun("b"),
        "parked": begun("c", state="parked"),
        "sent": begun("d", "succeeded", state="sent", answer={"id": "ch_1"}, sent_at=timezone.now()),
    }


def login(client, *codenames: str, username: str = "somebody"):
    user = User.objects.create_user(username, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client.force_login(user)
    return client


@pytest.fixture
def viewer(client):
    return login(client, "view_effect")


@pytest.fixture
def operator(client):
    return login(client, "view_effect", "change_effect")


def listed(client, **query: object) -> dict[str, str]:
    """Call and status, as they stand on the list."""
    response = client.get(LIST, query)
    assert response.status_code == 200, response
    row = r'field-call"><a href="[^"]*">([^<]*)</a>.*?<span class="job-state [^"]*">([^<]*)<'
    return dict(re.findall(row, response.content.decode(), re.S))


def act(client, action: str, *rows: Effect, **more: str):
    data = {"action": action, "_selected_action": [row.pk for row in rows], "index": "0", **more}
    return client.post(LIST, data, follow=True)


# The admin


def test_list_shows_the_status_of_each_call_newest_first(viewer, calls):
    assert list(listed(viewer).items()) == [
        ("charge:d", "sent"),
        ("charge:c", "parked"),
        ("charge:b", "ambiguous"),
        ("charge:a", "being made"),
    ]


@pytest.mark.parametrize(
    ("status", "keys"),
    [("sending", "a"), ("ambiguous", "b"), ("parked", "c"), ("sent", "d"), ("unsettled", "cb"), ("nonsense", "dcba")],
)
def test_filter_by_status(viewer, calls, status, keys):
    assert list(listed(viewer, status=status)) == [f"charge:{key}" for key in keys]


def test_search_by_name_key_or_job(viewer, calls):
    begun("a", name="refund")
    assert list(listed(viewer, q="charge:b")) == ["charge:b"]
    assert list(listed(viewer, q="ref")) == ["refund:a"]
    assert list(listed(viewer, q=calls["sent"].job)) == ["charge:d"]
    assert listed(viewer, q="arge") == {}


def test_list_takes_the_same_statements_for_4_calls_and_for_40(viewer, calls):
    def statements() -> list[str]:
        with CaptureQueriesContext(connection) as queries:
            listed(viewer)
        return [query["sql"] for query in queries if "jobs_" in query["sql"]]

    few = statements()
    for number in range(36):
        begun(f"more-{number}", "running")
    assert len(statements()) == len(few) == 1


def test_page_shows_the_answer_and_links_to_the_job(viewer, calls):
    row = calls["sent"]
    text = viewer.get(reverse("admin:jobs_effect_change", args=[row.pk])).content.decode()
    assert "ch_1" in text
    assert reverse("admin:jobs_job_change", args=[row.job]) in text
    assert "_save" not in text
    assert reverse("admin:jobs_job_change", args=[row.job]) in viewer.get(LIST).content.decode()


def test_page_outlives_the_job(viewer, calls):
    Job.objects.all().delete()
    page = viewer.get(reverse("admin:jobs_effect_change", args=[calls["sent"].pk])).content.decode()
    assert "not a job here, or deleted" in page
    assert listed(viewer)["charge:a"] == "ambiguous"


def test_it_happened_is_noted_with_its_answer_and_who_said_so(operator, calls):
    response = act(operator, "mark_happened", calls["parked"], calls["ambiguous"], answer='{"id": "ch_9"}')
    assert "Noted: charge:c, charge:b" in response.content.decode()
    for key in "bc":
        row = Effect.objects.get(key=key)
        assert (row.state, row.answer) == ("sent", {"id": "ch_9"})
        assert row.sent_at is not None
    assert {(entry.object_id, entry.user.username) for entry in LogEntry.objects.all()} == {
        (str(calls[name].pk), "somebody") for name in ("parked", "ambiguous")
    }
    assert "ch_9" in LogEntry.objects.first().change_message


def test_it_did_not_happen_forgets_the_call(operator, calls):
    act(operator, "mark_not_happened", calls["parked"])
    assert not Effect.objects.filter(key="c").exists()
    [entry] = LogEntry.objects.all()
    assert (entry.object_repr, entry.change_message) == ("charge:c", "Said that it did not happen")


@pytest.mark.parametrize("back", ["effect", "job"])
@pytest.mark.parametrize("verb", ["happened", "not-happened"])
def test_buttons_on_the_page_of_a_call_and_of_its_job(client, calls, verb, back):
    login(client, "view_effect", "change_effect", "view_job")
    row = calls["ambiguous"]
    page, url = reverse(f"admin:jobs_{back}_change", args=[row.job if back == "job" else row.pk]), settle(row)
    text = client.get(page).content.decode()
    assert f'action="{url}"' in text
    assert f'name="back" value="{back}"' in text
    assert client.get(url).status_code == 405
    response = client.post(url, {"verb": verb, "answer": '{"id": 9}', "back": back}, follow=True)
    assert response.status_code == 200
    assert "Noted: charge:b" in response.content.decode()
    assert list(Effect.objects.filter(key="b").values_list("answer", flat=True)) == [{"id": 9}] * (verb == "happened")
    assert LogEntry.objects.get().user.username == "somebody"
    assert settle(row) not in client.get(page).content.decode()


def test_no_button_where_nobody_has_to_say_anything_or_may(operator, calls):
    for name, row in calls.items():
        text = operator.get(reverse("admin:jobs_effect_change", args=[row.pk])).content.decode()
        assert (settle(row) in text) == (name in ("ambiguous", "parked"))
    operator.logout()
    login(operator, "view_effect", username="viewer")
    page = reverse("admin:jobs_effect_change", args=[calls["parked"].pk])
    assert settle(calls["parked"]) not in operator.get(page).content.decode()
    assert operator.post(settle(calls["parked"]), {"verb": "happened"}).status_code == 403
    assert Effect.objects.get(key="c").state == "parked"


def settle(row: Effect) -> str:
    return reverse("admin:jobs_effect_settle", args=[row.pk])


@pytest.mark.parametrize("action", ["mark_happened", "mark_not_happened"])
def test_call_that_is_made_or_known_is_left_alone(operator, calls, action):
    before = list(Effect.objects.values())
    response = act(operator, action, calls["sending"], calls["sent"])
    assert "left alone: charge:d, charge:a" in response.content.decode()
    assert list(Effect.objects.values()) == before
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("answer", ["{", "NaN", '"\\u0000"'])
def test_answer_that_is_not_json_changes_nothing(operator, calls, answer):
    response = act(operator, "mark_happened", calls["parked"], answer=answer)
    assert "The answer is not JSON, and nothing was changed" in response.content.decode()
    assert Effect.objects.get(key="c").state == "parked"


@pytest.mark.parametrize("action", ["mark_happened", "mark_not_happened", "delete_selected"])
def test_who_may_only_look_changes_nothing(viewer, admin_client, calls, action):
    before = list(Effect.objects.values())
    assert action not in viewer.get(LIST).content.decode()
    act(viewer, action, *calls.values(), post="yes")
    if action == "delete_selected":
        act(admin_client, action, *calls.values(), post="yes")
    for client in (viewer, admin_client):
        page = reverse("admin:jobs_effect_change", args=[calls["parked"].pk])
        assert client.post(page, {"state": "sent", "_save": "1"}).status_code == 403
    # A GET changes nothing either.
    admin_client.get(LIST, {"action": action, "_selected_action": calls["parked"].pk})
    assert list(Effect.objects.values()) == before
    assert not LogEntry.objects.exists()


def test_nothing_that_a_call_says_becomes_markup(operator):
    row = begun(EVIL, name=EVIL, state="parked", answer={EVIL: EVIL})
    for url in (LIST, reverse("admin:jobs_effect_change", args=[row.pk])):
        text = operator.get(url).content.decode()
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in act(operator, "mark_happened", row, answer=EVIL).content.decode()


# The command


def command(*args: object) -> str:
    out = StringIO()
    call_command("jobs", "effects", *map(str, args), stdout=out, no_color=True)
    return out.getvalue()


def test_command_lists_what_is_not_settled(calls):
    lines = command().splitlines()
    assert [line.split()[1:3] for line in lines[:2]] == [["charge:b", "ambiguous,"], ["charge:c", "parked,"]]
    assert lines[2] == "2 external calls are not settled."
    assert "jobs effects ID --happened" in lines[3]
    assert [(each["key"], each["status"]) for each in json.loads(command("--json"))] == [
        ("b", "ambiguous"),
        ("c", "parked"),
    ]


def test_command_notes_what_a_person_found(calls):
    told = command(calls["parked"].pk, "--happened", "--answer", '{"id": 1}', "--json")
    assert json.loads(told) == {"database": "default", "id": calls["parked"].pk, "happened": True}
    assert Effect.objects.get(key="c").answer == {"id": 1}
    command(calls["ambiguous"].pk, "--not-happened")
    assert not Effect.objects.filter(key="b").exists()
    assert command() == "0 external calls are not settled.\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--happened",), "Say which call"),
        (("{pk}",), "Say one of the two"),
        (("{pk}", "--happened", "--not-happened"), "Say one of the two"),
        (("{pk}", "--not-happened", "--answer", "1"), "Say one of the two"),
        (("{pk}", "--happened", "--answer", "{"), "cannot be kept as JSON"),
        (("{pk}", "--happened", "--database", "other"), "not one of JOBS"),
        (("{sending}", "--happened"), "no call that is ambiguous or parked"),
        (("{sent}", "--not-happened"), "no call that is ambiguous or parked"),
        (("0", "--happened"), "no call that is ambiguous or parked"),
    ],
)
def test_command_refuses_what_it_cannot_do(calls, args, says):
    before = list(Effect.objects.values())
    known = {"pk": calls["parked"].pk, **{name: row.pk for name, row in calls.items()}}
    with pytest.raises(CommandError, match=says):
        command(*(arg.replace("{pk}", "{parked}").format(**known) if arg != "{" else arg for arg in args))
    assert list(Effect.objects.values()) == before


# verify


def finding():
    [found] = [each for each in verify(patient=False).findings if each.rule == "effects-settled"]
    return found


@pytest.mark.django_db(transaction=True)
def test_verify_shows_what_nobody_knows_and_calls_none_of_it_broken(calls):
    found = finding()
    assert (found.violations, found.recovering) == (0, 2)
    assert found.examples == [str(calls["ambiguous"].pk), str(calls["parked"].pk)]
    clear_up(calls["ambiguous"].pk, "default", happened=False)
    clear_up(calls["parked"].pk, "default", happened=True)
    found = finding()
    assert (found.violations, found.recovering, found.examples) == (0, 0, [])


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_what_is_not_settled_is_found_by_its_index_however_long_the_history_is(calls):
    sent = calls["sent"]
    columns = [field.column for field in Effect._meta.concrete_fields if field.column not in ("id", "key")]
    names, key = ", ".join(columns), connection.ops.quote_name("key")
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO jobs_effect ({key}, {names}) SELECT CAST(i AS char(9)), {names} "
            f"FROM jobs_effect, {numbers(20000)} WHERE id = %s",
            [sent.pk],
        )
    analyze("jobs_effect")
    with CaptureQueriesContext(connection) as queries:
        finding()
    # Django asks MariaDB for a table's columns by "SELECT *".
    asked = [query["sql"].removeprefix(f"{UNCOMPILED}; ") for query in queries]
    statements = [sql for sql in asked if re.search("SELECT [^*].* FROM .jobs_effect.", sql)]
    assert len(statements) >= 2
    for sql in statements:
        assert "jobs_effect_open" in plan(sql), f"{sql}\n{plan(sql)}"


# The job's reasons, and its page


def reasons(job: Job) -> dict[str, str]:
    """Their codes, in their order, and the cures."""
    out = StringIO()
    call_command("jobs", "why", str(job.pk), "--json", stdout=out)
    return {each["code"]: each["cure"] for each in json.loads(out.getvalue())["reasons"]}


def test_a_parked_call_comes_before_the_failure_that_it_led_to():
    job = make("failed", error={**ERROR, "type": "EffectParked"})
    call = Effect.objects.create(name="charge", key="7", job=job.pk, lease=1, state="parked")
    found = reasons(job)
    assert [*found] == ["effect_parked", "failed"]
    assert f"effects {call.pk}" in found["effect_parked"]


def test_the_call_that_a_run_makes_comes_before_that_it_runs():
    job = make("running", node=let_heartbeat(make_node()), lease=1)
    Cancellation.objects.create(job=job.pk, reason="by hand")
    Effect.objects.create(name="charge", key="7", job=job.pk, lease=job.lease)
    assert [*reasons(job)] == ["ending", "calling", "running"]


def test_a_call_is_not_named_to_who_may_not_see_it(client, admin_client):
    job = make("failed", error={**ERROR, "type": "EffectParked"}, lease=1)
    Effect.objects.create(name="charge", key="secret", job=job.pk, lease=1, state="parked")
    page = reverse("admin:jobs_job_change", args=[job.pk])
    assert "charge:secret" in admin_client.get(page).content.decode()
    assert "charge:secret" not in login(client, "view_job", "view_node").get(page).content.decode()


@pytest.mark.django_db(transaction=True)
def test_a_call_is_settled_where_its_row_is(second, settings, admin_client):
    settings.JOBS = {**settings.JOBS, "DATABASES": ["default"]}
    call = begun("a", state="parked")
    settings.DATABASE_ROUTERS = [Replica()]
    admin_client.post(reverse("admin:jobs_effect_settle", args=[call.pk]), {"verb": "happened", "answer": "1"})
    assert Effect.objects.using("default").get().state == "sent"
