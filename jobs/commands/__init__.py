"""The subcommands of ``manage.py jobs``: a family each in a file, which says all of its help.

A new one is a :class:`jobs.commands.base.Subcommand`, and a line here; the order is that of the help.
"""

from jobs.commands.adopt import Adopt
from jobs.commands.base import Subcommand
from jobs.commands.change import Cancel, Delete, Move, Prioritize, Retry, RunNow
from jobs.commands.doctor import Doctor
from jobs.commands.effects import Effects
from jobs.commands.look import List, Nodes, Show
from jobs.commands.maintain import RunPrune, RunRescue
from jobs.commands.queues import PauseQueue, ResumeQueue
from jobs.commands.status import Status
from jobs.commands.verify import Verify
from jobs.commands.why import Why

SUBCOMMANDS: tuple[type[Subcommand], ...] = (
    Status,
    Why,
    List,
    Show,
    Nodes,
    Retry,
    Cancel,
    RunNow,
    Move,
    Prioritize,
    Delete,
    PauseQueue,
    ResumeQueue,
    Effects,
    RunRescue,
    RunPrune,
    Verify,
    Doctor,
    Adopt,
)

__all__ = ["SUBCOMMANDS", "Subcommand"]
