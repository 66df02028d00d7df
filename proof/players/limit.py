"""The slots of a limit. A claim stands still between what it reads and what it writes."""

from __future__ import annotations

import datetime
import time
import uuid
from contextlib import suppress
from functools import partial
from typing import Any
from unittest.mock import patch

from celery import current_app
from django.db import IntegrityError, connection

from jobs import store
from jobs.contrib.limits import claims as limited
from jobs.contrib.limits import limits
from jobs.contrib.limits import store as at_once
from jobs.lifecycle import claims, transitions
from jobs.models import Job, Node, State
from jobs.store import databases
from jobs.store.base import Claim
from proof.player import LONGEST, Differs, Player, Session
from tests import tasks

STATES = {State.READY: 0, State.RUNNING: 1, State.SUCCEEDED: 2}
STOP = "sorted"
BEGAN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

#: In PostgreSQL a claim is one statement. It waits at a lock before it writes, if its session is told of one.
_STOP = """
CREATE OR REPLACE FUNCTION proof_stop() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(nullif(current_setting('proof.stop', true), '')::bigint);
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER proof_stop BEFORE UPDATE ON jobs_job FOR EACH ROW EXECUTE FUNCTION proof_stop();
"""
_WAITS = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"


class Limit(Player):
    model = "limit"

    def __init__(self) -> None:
        super().__init__()
        self.flags = ("LOWERED", "ONE_WRITER") if self.is_lazy else ("LOWERED",)
        self._at_once = store.of("default").writes_at_once
        if self._at_once:
            with connection.cursor() as cursor:
                cursor.execute(_STOP)

    def close(self) -> None:
        super().close()
        if self._at_once:
            with connection.cursor() as cursor:
                cursor.execute("DROP TRIGGER proof_stop ON jobs_job")

    def play(self, steps: Any) -> None:
        sort = limited._sort

        def sorts(*args: Any, **kwargs: Any) -> Any:
            found = sort(*args, **kwargs)
            if not self.is_lazy:
                Session.reach(STOP)
            return found

        with patch.object(limited, "_sort", sorts):
            super().play(steps)

    def reset(self) -> None:
        super().reset()
        self.ids = [uuid.UUID(tasks.noop.delay(number).id) for number in range(3)]
        Job.objects.update(limit_key="key", run_at=BEGAN)
        self.node = Node.objects.create(hostname="here", pid=1).pk
        self.slots, self.runs = 2, dict[str, Job]()

    def clean(self) -> None:
        for who in self._sessions if self._at_once else ():
            databases.ask("default", "SELECT pg_advisory_unlock(%s)", _lock(who))
        super().clean()

    def _reads(self, who: str, j: int, given: dict[str, str]) -> None:
        known = limits.in_force(current_app, {tasks.noop.name: (self.slots, None)})
        claim = Claim(self.queue, self.node, 1, claims.new_token())
        session = self.session(who)
        if not self._at_once:
            session.start(partial(limited._take_anywhere, "default", claim, known), STOP)
            return
        databases.ask("default", "SELECT pg_advisory_lock(%s)", _lock(who))
        session.do(lambda: databases.ask("default", "SELECT set_config('proof.stop', %s, false)", str(_lock(who))))
        session.launch(partial(at_once.take, "default", claim, known, limited.FEW))
        until = time.monotonic() + LONGEST
        while not (session.is_over or databases.ask("default", _WAITS, _lock(who))) and time.monotonic() < until:
            time.sleep(0.001)

    def _end(self, who: str) -> list[Job]:
        if self._at_once:
            databases.ask("default", "SELECT pg_advisory_unlock(%s)", _lock(who))
        return list(self.session(who).end_call())

    def _claims(self, who: str, j: int, given: dict[str, str]) -> None:
        try:
            found = self._end(who)
        except IntegrityError:
            raise Differs("it meets another one in its slot") from None
        self.expect([job.pk for job in found], [self.ids[j]])
        [self.runs[who]] = found

    def _meets(self, who: str, j: Any, given: dict[str, str]) -> None:
        with suppress(IntegrityError):
            self.expect(self._end(who), "an error")

    def _completes(self, who: str, j: int, given: dict[str, str]) -> None:
        self.expect(transitions.succeed(self.runs.pop(who), None, 0.0), True)

    def _dies(self, who: str, j: Any, given: dict[str, str]) -> None:
        job = self.runs.pop(who)
        self.expect(transitions.hand_back(job, 0), True)
        # The order of the model is that of the numbers.
        Job.objects.filter(pk=job.pk).update(run_at=BEGAN)

    def _lowers(self, who: str, j: Any, given: dict[str, str]) -> None:
        self.slots = int(given["slots"])

    def compare(self, words: list[str]) -> None:
        for j, row in enumerate(Job.objects.filter(pk__in=self.ids).order_by("pk")):
            said = [int(word) for word in words[4 * j + 1 : 4 * j + 4]]
            found = [STATES.get(row.state, 9), row.lease, row.limit_slot if row.state == State.RUNNING else said[2]]
            if found != said:
                raise Differs(f"the row of job {j} is {found}")


def _lock(who: str) -> int:
    return 7000 + int(who)
