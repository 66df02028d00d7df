"""Weblate from the index, with the lines of our install page: its flows leave what they leave with stock Celery.

It needs Python 3.12 or newer, git with its daemon, PostgreSQL and Redis. On Debian its wheels are built with
``libcairo2-dev libgirepository1.0-dev libacl1-dev liblz4-dev libzstd-dev libxxhash-dev libssl-dev pkg-config`` (most
of it for borgbackup, which has no wheel). Pango and GTK come from ``gir1.2-pango-1.0``. ``JOBS_TEST_WEBLATE`` names an
environment that is there already.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from django.conf import settings

from tests.helpers.servers import Missing, Redis
from tests.products.weblate.product import FLOWS, Site, environment

pytestmark = [pytest.mark.slow, pytest.mark.servers, pytest.mark.timeout(3600), pytest.mark.xdist_group("weblate")]

#: A first component of a project gives it a glossary.
GLOSSARY_IS_MADE = {"a_component_is_added", "another_component_is_translated_by_itself"}


@pytest.fixture(scope="module")
def sites(tmp_path_factory) -> dict[str, Site]:
    """An installation with stock Celery, and one with jobs."""
    if not settings.DATABASES["default"]["ENGINE"].endswith("postgresql"):
        pytest.skip("Weblate is tried on PostgreSQL: set DATABASE_URL")
    if shutil.which("git") is None:
        pytest.skip("Weblate needs git")
    try:
        environment()
        redis = [Redis() for _ in ("stock", "jobs")]
    except Missing as exc:
        pytest.skip(str(exc))
    folder: Path = tmp_path_factory.mktemp("weblate")
    yield {kind: Site(kind, folder / kind, each) for kind, each in zip(("stock", "jobs"), redis, strict=True)}
    for each in redis:
        each.stop()


@pytest.fixture(scope="module")
def left(sites) -> dict[str, dict]:
    """What each flow has left, and the errors of its tasks."""
    return {kind: site.flows() for kind, site in sites.items()}


@pytest.mark.parametrize("flow", FLOWS)
def test_a_flow_leaves_what_it_leaves_with_stock_celery(left, flow):
    stock, ours = left["stock"][flow], left["jobs"][flow]
    assert "error" not in ours, ours["error"]
    assert ours["left"] == stock["left"]
    # A glossary gets its languages by one task and its repository by another, in any order: Weblate's own race.
    assert ours["failed"] == {} or (flow in GLOSSARY_IS_MADE and ours["failed"] == {"OSError": 1})


def test_audit_names_what_has_to_change(left, sites):
    """Each was looked up in Weblate's source, and is true."""
    said = sites["jobs"].audit()
    places = {(each["where"].rpartition("/weblate/")[2].partition(":")[0], each["kind"]) for each in said}
    assert places == {
        ("django_celery_beat", "differs"),
        ("api/views.py", "differs"),
        ("glossary/tasks.py", "differs"),
        ("trans/models/component.py", "differs"),
        ("trans/tasks.py", "differs"),
        ("utils/celery.py", "differs"),
        ("wladmin/views.py", "needless"),
    }
