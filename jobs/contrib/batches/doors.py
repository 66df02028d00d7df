"""What of the batches takes part in the core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from jobs.doors import Extension, Kind


def _is_open(using: str) -> Any:
    from jobs.contrib.batches import batch

    return batch.is_open(using)


def _last_job(key: Any) -> tuple[Any, str]:
    from jobs.admin.html import url_of

    return _("Show the job"), url_of("job_change", key)


def _page(key: Any) -> tuple[Any, str]:
    from jobs.admin.html import url_of

    return _("Show it"), url_of("batch_change", key)


class Batches(Extension):
    looks = {"open_batches": "EXISTS (SELECT 1 FROM jobs_batch WHERE ended_at IS NULL)"}
    needed = (_is_open, _("its batch has not ended, and counts it; try when it has"))
    kinds = {
        "unclosed": Kind(
            severity="error",
            many=ngettext_lazy("%(number)s batch cannot end", "%(number)s batches cannot end", "number"),
            place=_page,
        ),
        "batch": Kind(
            severity="info",
            many=ngettext_lazy(
                "%(number)s batch waits for its last job", "%(number)s batches wait for their last job", "number"
            ),
            is_fault=False,
            place=_last_job,
        ),
    }

    @property
    def inserting(self) -> Callable[[list[Any], str], None]:
        # Each call comes by here: it is imported once.
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

    def idle(self, app: Any, using: str) -> bool:
        from jobs.contrib.batches import batch

        return batch.close_ended(using) > 0

    def deleting(self, jobs: Any, using: str) -> None:
        from jobs.contrib.batches import batch

        batch.lose(jobs, using)

    def prune(self, using: str, budget: float) -> None:
        from jobs.contrib.batches import batch

        batch.prune(using)

    def disown(self, using: str) -> None:
        from jobs.contrib.batches import batch

        batch.disown(using)

    def selects(self) -> dict[str, Any]:
        from jobs.operations.selection import Field, read_id

        example, says = "6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11", "all jobs of a batch, by its id"
        return {"batch": Field(_("Batch"), example, says, read_id, "batch_id")}

    def other(self, what: Any) -> Any:
        from jobs.contrib.batches import rows

        return rows.other(what)

    def problems(self, found: dict[str, Any]) -> Iterator[Any]:
        from jobs.contrib.batches import rows

        return rows.problems()
