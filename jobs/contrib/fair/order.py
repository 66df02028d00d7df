"""The order in which a claim takes the jobs of a queue where keys take turns: round by round, some of each key.

A claim goes on behind the key at which this process's last claim ended. It steps from key to key in the index, so a
key's long backlog costs nothing. There is no counter that all processes would have to update.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from django.db.models import QuerySet

from jobs.contrib.fair import store
from jobs.contrib.fair.models import KEYED
from jobs.models import Job
from jobs.models.columns import ORDER
from jobs.store import databases
from jobs.store.base import Claim

#: A claim of one job looks at this many more keys: other processes may be about to take a key's last job.
SPARE = 3
#: The same where limits are in force; and how many more jobs of each key it looks at.
SPARE_LIMITED, BEHIND = 10, 5
#: How many keys a claim of other databases than PostgreSQL looks at: each costs two statements.
FEW = 10


@dataclass(frozen=True)
class Rotation:
    """
    Parameters:
        key: where the last claim ended.
        left: how many more jobs that key gets in its turn.
        weights: how many jobs a key gets in a turn, if not one.
        places: for some keys, where the last claim ended: only jobs behind that place are read (PostgreSQL).
    """

    queue: str
    size: int
    key: str
    left: int
    weights: Mapping[str, int]
    places: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def first(self, claim: Claim) -> tuple[str, dict[str, Any]]:
        """The SQL that selects the ids that a claim takes, and locks their rows (PostgreSQL)."""
        # A claim of one job takes it from the first key that has a free one, and does not look further.
        order, most = (f"ORDER BY {store.ROUND}", self.size) if self.size > 1 else ("", 1 + SPARE)
        rows = self._sql(claim, "id", self._share, most, "FOR UPDATE SKIP LOCKED", bool(self.places))
        # The name of the queue, which stands in it, may have braces.
        return rows.replace("{select}", "id") + f" {order} LIMIT {self.size}", {**self._values, **self._known}

    def window(self, claim: Claim, columns: str) -> tuple[str, dict[str, Any]]:
        """The SQL that selects columns of the rows that a claim may take, and their ``place``. It locks nothing."""
        rows = self._sql(claim, columns, f"{self._share} + {BEHIND}", self.size + SPARE_LIMITED, "")
        return rows.replace("{select}", f"{columns}, row_number() OVER (ORDER BY {store.ROUND}) AS place"), self._values

    @property
    def _share(self) -> str:
        return "1" if self.size == 1 else store.SHARE.format(size=self.size)

    @property
    def _values(self) -> dict[str, Any]:
        weights = {"fair_left": self.left, "fair_weights": json.dumps({**self.weights})}
        return {"fair_key": self.key, **(weights if self._is_weighted else {})}

    @property
    def _known(self) -> dict[str, Any]:
        if not self.places:
            return {}
        known, names = sorted(self.places), [f"at_{name}" for name in ORDER]
        places = [
            {"key": key, "before": before, **dict(zip(names, map(str, self.places[key]), strict=True))}
            for before, key in zip(["", *known], known, strict=False)
        ]
        return {"fair_places": json.dumps(places), "fair_last": known[-1]}

    @property
    def _is_weighted(self) -> bool:
        return bool(self.weights or self.left)

    def _sql(self, claim: Claim, columns: str, share: str, most: int, lock: str, is_known: bool = False) -> str:
        return store.rows_sql(claim, columns, share, most, lock, self.left > 0, self._is_weighted, is_known)

    # Elsewhere

    def pick(self, ready: QuerySet[Job], more: int = 0) -> list[Any]:
        """The ids of the rows that a claim takes, out of those that it may take, in SQL for every database."""
        keys = list(self._keys(ready.db))
        weights = [self.left if key == self.key and self.left else self.weights.get(key, 1) for key in keys]
        rounds = ceil(self.size / max(1, sum(weights)))
        found = []
        for place, (key, weight) in enumerate(zip(keys, weights, strict=True)):
            # The index's own condition, for SQLite.
            rows = ready.filter(KEYED, fair_key=key).values_list("pk", flat=True)
            found += [(number // weight, place, pk) for number, pk in enumerate(rows[: weight * rounds + more])]
        return [pk for *_, pk in sorted(found)[: self.size + more * len(keys)]]

    def free(self, ready: QuerySet[Job]) -> list[Any]:
        """The ids of those rows that no other transaction has locked; this locks them."""
        picked = self.pick(ready)
        free = set(databases.free(ready.filter(pk__in=picked)).values_list("pk", flat=True))
        return [pk for pk in picked if pk in free]

    def _keys(self, using: str) -> Iterator[str]:
        rows = Job.objects.using(using).filter(KEYED, queue=self.queue).order_by("fair_key")
        keys = rows.values_list("fair_key", flat=True)
        key, is_round = self.key, False
        if self.left:
            yield key
        for _ in range(min(self.size + SPARE, FEW)):
            following = keys.filter(fair_key__gt=key).first()
            if following is None and not is_round:
                is_round, following = True, keys.first()
            if following is None or (is_round and (following > self.key or (self.left and following == self.key))):
                return
            key = following
            yield key
