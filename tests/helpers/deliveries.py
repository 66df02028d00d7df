"""One key, delivered again and again, to many processes at once."""

from __future__ import annotations

from tests.helpers.harness import Worker, effects, wait_ended


def deliver_fifty_times(task, **environment):
    with Worker(concurrency=20, **environment):
        results = task.delay_many([(5,)] * 50)
        rows = wait_ended(*[result.id for result in results], timeout=60)
    assert {row.state for row in rows} == {"succeeded"}
    assert {row.result for row in rows} == {"welcome 5"}
    assert effects() == {"welcome:5": 1}
    [winner] = [row for row in rows if row.replay_of is None]
    assert [row.replay_of for row in rows].count(winner.pk) == 49
