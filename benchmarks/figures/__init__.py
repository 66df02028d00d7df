"""What is measured, by name."""

from benchmarks.figures.aio import Aio
from benchmarks.figures.bulk import Bulk
from benchmarks.figures.disk import Disk
from benchmarks.figures.drain import Drain
from benchmarks.figures.enqueue import Enqueue
from benchmarks.figures.events import Events
from benchmarks.figures.figure import Column, Figure
from benchmarks.figures.fleet import Fleet
from benchmarks.figures.held import Held
from benchmarks.figures.idle import Idle
from benchmarks.figures.kills import Kills
from benchmarks.figures.latency import Latency
from benchmarks.figures.limits import Limits
from benchmarks.figures.many import Many
from benchmarks.figures.prune import Prune
from benchmarks.figures.queues import Queues
from benchmarks.figures.shares import Shares
from benchmarks.figures.size import Size
from benchmarks.figures.sqlite import Sqlite
from benchmarks.figures.steady import Steady
from benchmarks.figures.steps import Steps
from benchmarks.figures.waits import Waits

__all__ = ["FIGURES", "Column", "Figure"]

#: They appear in the report in this order.
FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Enqueue(),
        Bulk(),
        Drain(),
        Latency(),
        Events(),
        Sqlite(),
        Size(),
        Held(),
        Limits(),
        Shares(),
        Queues(),
        Many(),
        Fleet(),
        Prune(),
        Aio(),
        Idle(),
        Disk(),
        Steps(),
        Waits(),
        Kills(),
        Steady(),
    )
}
