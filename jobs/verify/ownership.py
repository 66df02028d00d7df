"""What holds between running jobs and the nodes that run them. (Hard limits are not judged: only prefork has them.)"""

from __future__ import annotations

import uuid

from django.db.models import Exists, OuterRef, QuerySet
from django.utils.translation import gettext_lazy as _

from jobs import databases
from jobs.conf import conf
from jobs.lifecycle import now_plus
from jobs.models import Job, Node, State
from jobs.verify.rule import SLACK, Rows, Rule, View

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


def _of_dead_nodes(view: View, using: str) -> Rows:
    return Rows(Job.objects.using(using).filter(state=State.RUNNING, node__dead_at__isnull=False), version=VERSION)


def _long_of_dead_nodes(view: View, using: str) -> Rows:
    dead_for_long = now_plus(-rescue_bound())
    return Rows(Job.objects.using(using).filter(state=State.RUNNING, node__dead_at__lt=dead_for_long), version=VERSION)


def _of_silent_nodes(view: View, using: str) -> Rows:
    return _running_on(view.silent(conf().DEAD_AFTER / 2), using)


def _of_long_silent_nodes(view: View, using: str) -> Rows:
    return _running_on(view.silent(death_bound()), using)


def _running_on(nodes: list[uuid.UUID], using: str) -> Rows:
    return Rows(Job.objects.using(using).filter(state=State.RUNNING, node_id__in=nodes), version=VERSION)


def _silent_nodes(view: View, using: str) -> Rows:
    return Rows(keys=view.silent(conf().DEAD_AFTER / 2))


def _long_silent_nodes(view: View, using: str) -> Rows:
    return Rows(keys=view.silent(death_bound()))


def _dead_nodes_that_beat(view: View, using: str) -> Rows:
    return Rows(Node.objects.using(using).filter(pk__in=view.beats, dead_at__isnull=False))


def _long_dead_nodes_that_beat(view: View, using: str) -> Rows:
    return Rows(Node.objects.using(using).filter(pk__in=view.beats, dead_at__lt=now_plus(-rescue_bound())))


def _dead_at_home_only(view: View, using: str) -> Rows:
    return _alive_of(Node.objects.using(databases.home()).filter(dead_at__isnull=False), using)


def _long_dead_at_home_only(view: View, using: str) -> Rows:
    return _alive_of(Node.objects.using(databases.home()).filter(dead_at__lt=now_plus(-rescue_bound())), using)


def _alive_of(dead: QuerySet[Node], using: str) -> Rows:
    nodes = Node.objects.using(using).filter(dead_at=None)
    if using == databases.home() or not (alive := list(nodes.values_list("pk", flat=True))):
        return Rows()
    return Rows(nodes.filter(pk__in=list(dead.filter(pk__in=alive).values_list("pk", flat=True))))


RULES = (
    Rule(
        id="running-on-a-node",
        says=_("the node of a running job has a row"),
        broken=_of_no_node,
    ),
    Rule(
        id="dead-node-rescued",
        says=_("the jobs that a dead node was running are given back"),
        broken=_long_of_dead_nodes,
        waiting=_of_dead_nodes,
        bound=rescue_bound,
    ),
    Rule(
        id="silent-node-rescued",
        says=_("the jobs of a node that does not beat any more are given back"),
        broken=_of_long_silent_nodes,
        waiting=_of_silent_nodes,
        bound=death_bound,
    ),
    Rule(
        id="silent-node-dead",
        says=_("a node that does not beat any more is declared dead"),
        broken=_long_silent_nodes,
        waiting=_silent_nodes,
        bound=death_bound,
        at_home=True,
    ),
    Rule(
        id="dead-node-silent",
        says=_("a dead node finds its beat gone, and takes a new id"),
        broken=_long_dead_nodes_that_beat,
        waiting=_dead_nodes_that_beat,
        bound=rescue_bound,
        at_home=True,
    ),
    Rule(
        id="dead-everywhere",
        says=_("a node that is dead in the first database is dead in all"),
        broken=_long_dead_at_home_only,
        waiting=_dead_at_home_only,
        bound=rescue_bound,
    ),
)
