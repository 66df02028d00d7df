"""What docs/monitor has for Prometheus and Grafana, against the metrics that are there, by Prometheus itself."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from urllib.parse import urlsplit

import pytest
from django.utils import timezone

from jobs.contrib.limits.limits import set_by_hand
from jobs.contrib.operator import status
from jobs.contrib.operator.metrics import exposition, processes
from jobs.contrib.operator.statistics import Count
from jobs.contrib.pauses import pauses
from jobs.lifecycle.transitions import PARKED
from jobs.models import Effect, Job
from tests.conftest import not_installed
from tests.helpers.harness import ROOT
from tests.helpers.rows import ended, let_heartbeat, make, make_node
from tests.helpers.servers import Server, die_with_parent, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

ALERTS, GRAFANA = ROOT / "docs/monitor/alerts.yml", ROOT / "docs/monitor/grafana.json"


def binary(name: str) -> str:
    return shutil.which(name) or not_installed(f"{name} (Debian: prometheus)")


# What an autoscaler asks


def needed(queue: str = "mail") -> int:
    return processes(status.gather(live=True))[queue]


def finished(ran: float, count: int = 1) -> None:
    for _ in range(count):
        ended(timezone.now() - datetime.timedelta(minutes=5), ran=ran, queue="mail")
    Count().run_once()


def test_a_queue_of_unknown_jobs_needs_a_process_for_each():
    for state in ("ready", "ready", "running", "scheduled"):
        make(state, queue="mail")
    assert needed() == 3


def test_many_short_jobs_need_as_few_processes_as_do_them_in_a_minute():
    finished(0.5, 3)
    for _ in range(200):
        make(queue="mail")
    assert 1 <= needed() <= 3, "100 s of work"
    make("running", queue="mail")
    assert 2 <= needed() <= 4


def test_there_are_never_more_processes_than_jobs():
    finished(3000.0)
    for _ in range(5):
        make(queue="mail")
    assert needed() == 5


def test_what_waits_for_a_worker_that_knows_its_task_needs_a_process():
    """Scaled to nothing, nobody would know it for ever."""
    for _ in range(50):
        make("scheduled", run_at=PARKED, waits_for="task:tests.tasks.new", queue="mail")
    assert needed() == 1
    pauses.pause("mail")
    assert needed() == 0


def test_what_may_not_run_needs_no_process():
    for _ in range(5):
        make(queue="mail")
    set_by_hand("@mail", 2, None)
    assert needed() == 2
    Job.objects.update(held=True)
    assert needed() == 0
    Job.objects.update(held=None)
    pauses.pause("mail")
    make("running", queue="mail")
    assert needed() == 1


# The files


def test_every_metric_that_they_name_is_there():
    given = set(re.findall(r"^# TYPE (\S+)", exposition()[0].decode(), re.M))
    texts = {path: path.read_text() for path in (ALERTS, GRAFANA, ROOT / "docs/howto/monitor.md")}
    # As one pattern for two.
    texts[ALERTS] = texts[ALERTS].replace(
        '{__name__=~"celery_task_(failed|succeeded)_total"}', "celery_task_failed_total celery_task_succeeded_total"
    )
    for path, text in texts.items():
        named = set(
            re.findall(r"\b(?:celery|jobs)_(?:task|worker|queue|active|oldest|live|due|unsettled|processes)\w*", text)
        )
        assert named, path
        assert named - given == set(), path


def test_each_alert_fires_for_its_trouble_and_only_for_it():
    promtool = binary("promtool")
    for what in (["check", "rules", str(ALERTS)], ["test", "rules", str(ROOT / "tests/alerts.yml")]):
        done = subprocess.run([promtool, *what], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    fired = (ROOT / "tests/alerts.yml").read_text()
    assert [name for name in re.findall(r"alert: (\w+)", ALERTS.read_text()) if name not in fired] == []


class Prometheus(Server):
    """It scrapes one address, every second, with the token."""

    name = "prometheus"

    def __init__(self, target: str) -> None:
        self.target = target
        super().__init__()

    def prepare(self) -> None:
        scrape = {
            "job_name": "jobs",
            "metrics_path": "/jobs/metrics",
            "authorization": {"credentials": "secret"},
            "static_configs": [{"targets": [self.target]}],
        }
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        # JSON is YAML.
        config = {"global": every, "rule_files": [str(ALERTS)], "scrape_configs": [scrape]}
        (self.directory / "prometheus.yml").write_text(json.dumps(config))

    def command(self) -> list[str]:
        places = ["--config.file", "prometheus.yml", "--storage.tsdb.path", "data"]
        return die_with_parent(binary("prometheus"), *places, "--web.listen-address", f"127.0.0.1:{self.port}")

    def is_ready(self) -> bool:
        try:
            return bool(self.ask("rules"))
        except OSError:
            return False

    def ask(self, path: str, **query: str) -> dict:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]


def test_a_real_prometheus_scrapes_them_and_answers_each_panel(live_server, settings):
    binary("prometheus")
    settings.JOBS = {**settings.JOBS, "METRICS_TOKEN": "secret"}
    make("running", node=let_heartbeat(make_node(concurrency=4)))
    make(age=600)
    pauses.pause("mail")
    Effect.objects.create(name="charge", key="7", job=make("failed").pk, lease=1, state="parked")
    for state in ("succeeded", "failed", "cancelled"):
        ended(timezone.now() - datetime.timedelta(minutes=5), state=state)
    Count().run_once()
    panels = json.loads(GRAFANA.read_text())["panels"]
    exprs = {target["expr"] for panel in panels for target in panel["targets"]}
    server = Prometheus(urlsplit(live_server.url).netloc)
    try:
        # A rate, and an increase, need two scrapes. What grew by nothing is not among the most frequent.
        quiet = {each for each in exprs if each.startswith("topk")}

        def silent() -> set[str]:
            return {each for each in exprs if not server.ask("query", query=each)["result"]} - quiet

        wait_for(lambda: not silent(), 30, "each panel has data")
        assert [server.ask("query", query=each)["result"] for each in quiet] == [[]]
        rules = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
        assert [rule["name"] for rule in rules if rule["health"] == "err"] == []

        # The oldest job waits for ten minutes, somebody should look, and a call is ambiguous.
        def active() -> set[str]:
            return {alert["labels"]["alertname"] for alert in server.ask("alerts")["alerts"]}

        wait_for(lambda: {"JobsWaitTooLong", "JobsAmbiguousCalls"} <= active(), 30, "the alerts are there")
        wait_for(lambda: not active() & {"JobsNotScraped", "JobsNoWorker"}, 30, "a slow scrape is forgotten")
    finally:
        server.stop()
