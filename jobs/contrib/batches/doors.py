"""The part of the batches in the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _

from jobs.doors import Extension


def _is_open(using: str) -> Any:
    from jobs.contrib.batches import batch

    return batch.is_open(using)


class Batches(Extension):
    looks = {"open_batches": "jobs_batch WHERE ended_at IS NULL"}
    needed = (_is_open, _("its batch has not ended, and counts it; try when it has"))

    @property
    def inserting(self) -> Callable[[list[Any], str], None]:
        # Each call uses this: so it is imported only once.
        from jobs.contrib.batches.batch import join

        return join

    def again(self, jobs: Any, using: str) -> dict[str, Any]:
        from jobs.contrib.batches import batch

        batch.open_again(jobs, using)
        return {}

    def ticked(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        if found := [alias for alias, said in answers.items() if said["open_batches"]]:
            from jobs.contrib.batches import batch
            from jobs.store import databases

            databases.everywhere(batch.close_ended, found)

    def idle(self, app: Any, using: str, clock: Any) -> bool:
        from jobs.contrib.batches import batch

        return batch.close_ended(using) > 0

    def deleting(self, jobs: Any, using: str, of: Any) -> None:
        from jobs.contrib.batches import batch

        batch.lose(jobs, using)

    def prune(self, using: str, budget: float) -> None:
        from jobs.contrib.batches import batch

        batch.prune(using)

    def disown(self, using: str, is_dry: bool) -> dict[str, int]:
        from jobs.contrib.batches import batch

        if not is_dry:
            batch.disown(using)
        return {}

    def selects(self) -> dict[str, Any]:
        from jobs.contrib.operations.selection import Field, read_id

        example, says = "6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11", "all jobs of a batch, by its id"
        return {"batch": Field(_("Batch"), example, says, "batch_id", read_id)}

    def other(self, what: Any) -> Any:
        from jobs.contrib.batches import rows

        return rows.other(what)
