"""Jobs are found by their tags, wherever people select jobs."""

import json

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

import jobs
from jobs.contrib.operations.selection import Selection
from jobs.contrib.tags.operator import waiting
from jobs.contrib.tags.tags import parse
from jobs.models import Job
from tests import tasks
from tests.helpers import plans

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def found(text, states=()):
    [rows] = [Selection.of({"tag": text}, states).rows("default")]
    return sorted(job.args[0] for job in rows)


@pytest.fixture
def tagged():
    for key, tags in {"a": {"user": 5}, "b": {"user": 55, "team": "x,y"}, "c": {"user": 5, "team": 'q"5'}}.items():
        tasks.effect.apply_async((key,), tags=tags)
    tasks.effect.delay("d")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("user=5", ["a", "c"]),
        ("user=55", ["b"]),
        ("USER=5", []),
        ("team=x,y", ["b"]),
        ('user=5,team=q"5', ["c"]),
        ('team=Q"5', []),
        ("5=user", None),
        ("user", None),
        ("%", None),
    ],
)
def test_what_people_write(tagged, text, keys):
    if keys is None:
        with pytest.raises(ValueError, match="tag: "):
            found(text)
    else:
        assert found(text) == keys
        assert found(text, ["ready"]) == keys
        assert found(text, ["failed"]) == []


def test_a_command_cancels_those_of_a_tag(tagged, capsys):
    call_command("jobs", "cancel", "--tag", "user=5", "--json")
    assert json.loads(capsys.readouterr().out)["done"] == 2
    assert sorted(job.args[0] for job in Job.objects.filter(state="cancelled")) == ["a", "c"]
    with pytest.raises(CommandError, match="--tag is empty"):
        call_command("jobs", "cancel", "--tag", "")


def test_lists_say_them(tagged, capsys):
    call_command("jobs", "list", "--tag", "user=55", "--json")
    assert [job["tags"] for job in json.loads(capsys.readouterr().out)] == [{"team": "x,y", "user": "55"}]
    call_command("jobs", "show", str(Job.objects.get(tags__have={"user": 55}).pk))
    assert '{"team":"x,y","user":"55"}' in capsys.readouterr().out


def test_pages_find_and_show_them_also_where_arguments_are_hidden(tagged, admin_client, settings):
    settings.JOBS = {**settings.JOBS, "REDACT": "tests.helpers.redact.hide"}
    job = Job.objects.get(tags__have={"user": 55})
    for query in ("tag=user%3D55", "q=tag:user%3D55"):
        text = admin_client.get(f"/admin/jobs/job/?{query}").content.decode()
        assert str(job.pk) in text
        assert "1 job" in text or text.count("/change/") == 1
    assert "/admin/jobs/job/?tag=user%3D55" in admin_client.get(f"/admin/jobs/job/{job.pk}/change/").content.decode()
    assert str(job.pk) not in admin_client.get("/admin/jobs/job/?q=tag:nothing").content.decode()


def test_a_metric_counts_live_jobs_by_those_that_the_settings_name(tagged, settings):
    assert waiting({}) == []
    settings.JOBS = {**settings.JOBS, "TAG_METRICS": ["user"]}
    assert sorted(waiting({})) == [(["user", "5", "ready"], 2), (["user", "55", "ready"], 1)]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_tag_is_found_by_its_index():
    plans.make_history()
    with jobs.tagged(team="a"):
        tasks.effect.delay_many([(number,) for number in range(2000)], tags={"user": 1})
    tasks.effect.apply_async(("a",), tags={"user": 5})
    plans.analyze("jobs_job")

    def find():
        assert len(found("user=5")) == 1
        Selection.of({"tag": "user=5"}).count()
        assert len(list(Selection.of({"tag": "user=5"}, ["failed", "ready"]).jobs())) == 1

    plans.assert_indexed("tag", find)
    [(sql, params), *_rest] = plans.asked_by(lambda: found("user=5"))
    assert "jobs_job_tags" in plans.plan(sql, params) or connection.vendor == "mysql"


def test_a_name_that_is_given_twice_is_refused():
    """A job has one value of each: the first one was left out without a word."""
    with pytest.raises(ValueError, match="a name twice"):
        parse("user=5,user=6")
    assert parse("user=5,team=a,b") == {"user": "5", "team": "a,b"}


@pytest.mark.parametrize("odd", ["null", "5", '["x"]'])
def test_tags_that_a_person_has_edited_are_none(odd):
    job = tasks.effect.delay("a")
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE jobs_job SET tags = '{odd}'")
    assert Job.objects.get(pk=job.id).tags == {}
