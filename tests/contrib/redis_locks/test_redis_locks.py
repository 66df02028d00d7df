"""Locks in Redis: what happens when it is away, or says less than it knows. (What all stores do, the core tests.)"""

from __future__ import annotations

import time

import pytest
from django.core.cache import caches
from django_redis import get_redis_connection
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from jobs import lock
from jobs.contrib.locks import locks
from jobs.contrib.redis_locks.store import RedisStore
from jobs.models import Job
from tests.contrib.locks import tasks as own_tasks
from tests.helpers.harness import Worker, effects, in_body, wait_ended
from tests.helpers.locking import SHORT, is_held, take
from tests.helpers.servers import fair, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def is_in_redis(key="a") -> bool:
    """Asks without taking it, which would look like another holder."""
    return bool(get_redis_connection().exists(caches["default"].make_key(f"jobs:lock:{key}")))


@pytest.mark.servers
def test_tokens_grow_after_redis_lost_its_data(redis_cache, redis_server):
    first = take()
    redis_server.call("FLUSHALL")
    assert take() > first


@pytest.mark.servers
def test_tokens_grow_when_the_store_changes(redis_cache, settings):
    tokens = [take()]
    for alias in (None, "default", None):
        settings.JOBS = {**settings.JOBS, "LOCK_CACHE": alias}
        tokens.append(take())
    assert tokens == sorted(set(tokens))


@pytest.mark.servers
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"IGNORE_EXCEPTIONS": True},
        {"SOCKET_TIMEOUT": 60, "CONNECTION_POOL_KWARGS": {"retry": Retry(ConstantBackoff(1), 9)}},
    ],
)
@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_without_redis_the_work_goes_on_with_a_warning(redis_cache, redis_server, caplog, monkeypatch, options, how):
    redis_cache(**options)
    earlier = take()
    redis_server.kill() if how == "refuses" else redis_server.pause()
    ahead = time.time_ns() + 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: ahead)
    began = fair()
    token = take()
    assert fair() - began < 4
    assert token < ahead // 1000, "of the machine's own clock: it would fence those who come after it"
    assert token > earlier
    assert [record.action for record in caplog.records][:1] == ["lock_open"]


@pytest.mark.servers
def test_ignore_exceptions_makes_no_answer_unknown(redis_cache):
    redis_cache(IGNORE_EXCEPTIONS=True)
    with lock("a"):
        assert is_held()
    assert isinstance(take(), int)


@pytest.mark.servers
def test_a_restart_of_redis_costs_no_lock(redis_cache, redis_server, caplog):
    """Old connections are replaced, and a lock that went with the data is taken again by its holder."""
    with lock("a", ttl=SHORT):
        redis_server.kill()
        redis_server.start()
        wait_for(is_in_redis, 5, "renewed")
        assert is_held()
    assert not is_held()
    assert "lock_open" not in [getattr(record, "action", "") for record in caplog.records]


@pytest.mark.servers
def test_a_lock_taken_without_redis_becomes_one_when_it_is_back(redis_cache, redis_server):
    redis_server.kill()
    with lock("a", ttl=SHORT):
        redis_server.start()
        wait_for(is_in_redis, 5, "taken")
        assert is_held()
    assert not is_held()


def test_where_the_locks_are(settings):
    cache = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    redis = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    for caches_, alias, expected in (
        ({"default": cache}, "default", locks.Store),
        ({"default": redis}, "default", RedisStore),
        ({"default": cache, "locks": redis}, "default", locks.Store),
        ({"default": cache, "locks": redis}, "locks", RedisStore),
        ({"default": cache}, "locks", locks.Store),
        ({"default": redis}, None, locks.Store),
    ):
        settings.CACHES = caches_
        settings.JOBS = {**settings.JOBS, "LOCK_CACHE": alias}
        assert type(locks.store_of("a")) is expected


@pytest.mark.slow
@pytest.mark.servers
def test_redis_killed_while_locks_are_held(redis_cache, redis_server, tmp_path):
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=4, CACHE_URL=redis_server.url) as worker:
        holder = own_tasks.gated_alone.delay("k", "a", str(started), str(gate))
        in_body(holder.id, started)
        waiting = [own_tasks.gated_alone.delay("k", f"w{n}", str(started), str(gate)) for n in range(5)]
        wait_for(lambda: Job.objects.filter(waits_for__isnull=False).count() == 5, 20, "they wait")
        redis_server.kill()
        others = [own_tasks.locked.delay(f"o{n}") for n in range(5)]
        wait_ended(*[result.id for result in [*waiting, *others]], timeout=60)
        assert "its store is away" in worker.text()
        redis_server.start()
        gate.touch()
        late = [own_tasks.locked.delay(f"l{n}") for n in range(5)]
        results = [holder, *waiting, *others, *late]
        rows = wait_ended(*[result.id for result in results], timeout=60)
    assert {(row.state, row.retries, row.crashes, row.node_losses) for row in rows} == {("succeeded", 0, 0, 0)}
    assert set(effects().values()) == {1}
    assert len(effects()) == 16
