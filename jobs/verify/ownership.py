"""What holds between running jobs and the nodes that run them. (Hard limits are not judged: only prefork has them.)"""

from __future__ import annotations

from django.db.models import Exists, OuterRef
from django.utils.translation import gettext_lazy as _

from jobs import databases
from jobs.conf import conf
from jobs.lifecycle import now_plus
from jobs.models import Job, Node, State
from jobs.verify.rule import SLACK, Rows, Rule, View, mended

#: A running job changes owner with its lease only.
VERSION = ("lease",)


def rescue_bound() -> float:
    """From the death of a node, as it was declared, until its jobs are given back."""
    return 2 * conf().HEARTBEAT + SLACK


def death_bound() -> float:
    """From the last beat of a node until it is declared dead and its jobs are given back."""
    return conf().DEAD_AFTER + 3 * conf().HEARTBEAT + SLACK


def _of_no_node(view: View, using: str) -> Rows:
    node = Node.objects.using(using).filter(pk=OuterRef("node_id"))
    running = Job.objects.using(using).filter(state=State.RUNNING, node_id__isnull=False)
    return Rows(running.filter(~Exists(node)))


def _of_dead_nodes(view: View, using: str, seconds: float) -> Rows:
    running = Job.objects.using(using).filter(state=State.RUNNING, node__dead_at__lte=now_plus(-seconds))
    return Rows(running, version=VERSION)


def _of_silent_nodes(view: View, using: str, seconds: float) -> Rows:
    return Rows(Job.objects.using(using).filter(state=State.RUNNING, node_id__in=view.silent(seconds)), version=VERSION)


def _silent_nodes(view: View, using: str, seconds: float) -> Rows:
    return Rows(keys=view.silent(seconds))


def _dead_nodes_that_beat(view: View, using: str, seconds: float) -> Rows:
    return Rows(Node.objects.using(using).filter(pk__in=view.beats, dead_at__lte=now_plus(-seconds)))


def _dead_at_home_only(view: View, using: str, seconds: float) -> Rows:
    nodes = Node.objects.using(using).filter(dead_at=None)
    if using == databases.home() or not (alive := list(nodes.values_list("pk", flat=True))):
        return Rows()
    dead = Node.objects.using(databases.home()).filter(pk__in=alive, dead_at__lte=now_plus(-seconds))
    return Rows(nodes.filter(pk__in=list(dead.values_list("pk", flat=True))))


def _suspicious() -> float:
    return conf().DEAD_AFTER / 2


RULES = (
    Rule(
        id="running-on-a-node",
        says=_("the node of a running job has a row"),
        broken=_of_no_node,
    ),
    mended(
        id="dead-node-rescued",
        says=_("the jobs that a dead node was running are given back"),
        late=_of_dead_nodes,
        bound=rescue_bound,
    ),
    mended(
        id="silent-node-rescued",
        says=_("the jobs of a node that does not beat any more are given back"),
        late=_of_silent_nodes,
        quiet=_suspicious,
        bound=death_bound,
    ),
    mended(
        id="silent-node-dead",
        says=_("a node that does not beat any more is declared dead"),
        late=_silent_nodes,
        quiet=_suspicious,
        bound=death_bound,
        at_home=True,
    ),
    mended(
        id="dead-node-silent",
        says=_("a dead node finds its beat gone, and takes a new id"),
        late=_dead_nodes_that_beat,
        bound=rescue_bound,
        at_home=True,
    ),
    mended(
        id="dead-everywhere",
        says=_("a node that is dead in the first database is dead in all"),
        late=_dead_at_home_only,
        bound=rescue_bound,
    ),
)
