"""What tests of real workers share: brokers, and bodies that hold their process."""

from __future__ import annotations

import pytest

from jobs.models import Job
from tests import tasks
from tests.helpers.harness import in_body, wait_ended
from tests.helpers.servers import wait_for


@pytest.fixture(params=["jobs", pytest.param("redis", marks=pytest.mark.servers)])
def broker(request, use_broker):
    """With an event loop the pool has a pipe for each process, without one they share a pipe."""
    use_broker(request.getfixturevalue("redis_server").url if request.param == "redis" else "jobs://")
    return request.param


@pytest.fixture
def on(request, use_broker):
    """Use this broker, in this test."""

    def use(name: str) -> None:
        use_broker(request.getfixturevalue("redis_server").url if name == "redis" else "jobs://")

    return use


class Bodies:
    """Bodies that hold their process until they may end."""

    def __init__(self, directory) -> None:
        self.directory = directory
        self.jobs: dict[str, str] = {}

    def begin(self, *names: str) -> None:
        for name in names:
            self.jobs[name] = tasks.waits.delay(
                name, str(self.directory / name), str(self.directory / f"{name}.end")
            ).id

    def running(self) -> list[str]:
        return [name for name in self.jobs if (self.directory / name).exists()]

    def wait_running(self, count: int) -> list[str]:
        return wait_for(lambda: len(self.running()) >= count and self.running(), 20, f"{count} bodies run")

    def pid(self, name: str) -> int:
        return in_body(self.jobs[name], self.directory / name)

    def end(self, *names: str) -> None:
        for name in names or self.jobs:
            (self.directory / f"{name}.end").touch()
        wait_ended(*(self.jobs[name] for name in names or self.jobs))


def assert_nothing_counted() -> None:
    assert not Job.objects.exclude(crashes=0, node_losses=0, retries=0).exists()
