"""A batch of jobs that wait."""

from __future__ import annotations

from jobs import batch
from jobs.models import Batch
from tests import tasks


def made(count: int = 2, **more) -> Batch:
    """A batch that tells of its end."""
    with batch("import 7", tasks.effect.si("succeeded"), tasks.effect.si("failed"), **more) as found:
        tasks.part.delay_many([(f"{n}",) for n in range(count)])
    return found
