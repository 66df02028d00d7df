"""``manage.py jobs mcp``, asked by a program as an agent's would: a real process, a line for each message."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from jobs.contrib.mcp import server
from jobs.management.commands.jobs import Command
from jobs.models import Job
from tests import tasks
from tests.helpers.harness import ROOT, environment
from tests.helpers.redactions import redact
from tests.helpers.rows import make
from tests.helpers.servers import die_with_parent
from tests.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


class Agent:
    """The other end of the server's stdin and stdout."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.number = process, 0

    def send(self, line: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        self.send(json.dumps({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}).encode())
        said = self.read()
        assert (said["jsonrpc"], said["id"]) == ("2.0", self.number)
        return said

    def call(self, tool: str, **arguments: Any) -> Any:
        """What a tool answers, which is JSON."""
        result = self.ask("tools/call", name=tool, arguments=arguments)["result"]
        assert result["isError"] is False, result
        return json.loads(result["content"][0]["text"])


@pytest.fixture
def agent(request) -> Iterator[Agent]:
    command = die_with_parent(sys.executable, "manage.py", "jobs", "mcp", *getattr(request, "param", ()))
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield Agent(process)
    finally:
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors


def test_an_agent_finds_out_why_a_job_waits_and_changes_nothing(agent):
    key = str(tasks.noop.apply_async(countdown=3600).id)
    before = Job.objects.values().get()
    hello = agent.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "a"})["result"]
    assert hello["protocolVersion"] == "2025-06-18"
    assert hello["serverInfo"]["name"] == "jobs"
    agent.send(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')
    assert agent.ask("ping")["result"] == {}

    tools = agent.ask("tools/list")["result"]["tools"]
    assert [each["name"] for each in tools] == list(server.READING)
    assert all(each["annotations"]["readOnlyHint"] for each in tools)
    assert agent.call("status", live=True)["jobs"]["scheduled"] == 1
    assert [each["id"] for each in agent.call("list", state="scheduled", limit=5)] == [key]
    assert agent.call("why", id=key)["reasons"][0]["code"] == "scheduled"
    assert agent.call("show", id=key)["state"] == "scheduled"
    assert agent.call("verify")["violations"] == 0
    assert agent.call("nodes") == []
    assert Job.objects.values().get() == before


def test_an_id_that_no_answer_can_repeat_is_refused(agent):
    for odd in (b"1e999", b'{"a": 1}', b"null", b"1.5"):
        agent.send(b'{"jsonrpc": "2.0", "method": "ping", "id": ' + odd + b"}")
        said = agent.read()
        assert (said["id"], said["error"]["code"]) == (None, -32600)
    assert agent.ask("ping")["result"] == {}


def test_what_is_wrong_is_said_and_the_next_question_is_answered(agent):
    agent.send(b"no json")
    assert agent.read()["error"]["code"] == -32700
    agent.send(b"[]")
    assert agent.read()["error"]["code"] == -32600
    assert agent.ask("resources/list")["error"]["code"] == -32601
    for name, arguments, says in (
        ("retry", {}, "There is no tool retry"),
        ("why", {}, "why needs id"),
        ("list", {"odd": 1}, "['odd']"),
        ("list", {"limit": "5"}, "limit has to be integer"),
        ("list", {"state": "odd"}, "state has to be ['scheduled'"),
        ("show", {"id": "x", "follow": True}, "['follow']"),
        ("show", [1], "[[1]]"),
    ):
        error = agent.ask("tools/call", name=name, arguments=arguments)["error"]
        assert (error["code"], says in error["message"]) == (-32602, True), error
    refused = agent.ask("tools/call", name="show", arguments={"id": "no id"})["result"]
    assert refused["isError"] is True
    assert "'no id'" in refused["content"][0]["text"]
    assert agent.call("list") == []


def test_a_closed_input_has_no_question():
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "manage.py", "jobs", "mcp"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("agent", [["--replay"]], indirect=True)
def test_a_replay_is_rolled_back_whatever_the_agent_says(agent):
    key = str(tasks.effect.delay("told").id)
    [tool] = [each for each in agent.ask("tools/list")["result"]["tools"] if each["name"] == "replay"]
    assert (list(tool["inputSchema"]["properties"]), tool["annotations"]["readOnlyHint"]) == (["id"], False)
    error = agent.ask("tools/call", name="replay", arguments={"id": key, "dry_run": False})["error"]
    assert "['dry_run']" in error["message"]
    assert agent.call("replay", id=key)["tables"][0]["inserted"] == 1
    assert Job.objects.get(pk=key).state == "ready"
    assert not Effect.objects.exists()


def test_an_agent_sees_no_more_than_people(settings):
    redact(settings)
    key = str(make("succeeded", args=["key", "s3cret"]).pk)
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "show", "arguments": {"id": key}}}
    said = server.Server(Command).answer(json.dumps(call).encode())
    assert said is not None
    assert "s3cret" not in said
    assert "***" in said


def test_its_tools_are_commands_that_have_no_reason_to_be_given():
    """What changes a job takes a reason for its history, or says that it is a dry run."""
    for name in server.READING:
        assert not {flag for flag, _ in Command.subcommands[name].options} & {
            "--why",
            "--reason",
            "--dry-run",
            "--write",
        }
