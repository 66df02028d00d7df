"""The key of a call's job: that of its task, or of its queue. Also: in which queues keys take turns."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from string import Formatter
from typing import Any

from jobs.calling.calls import name_of
from jobs.conf import conf, is_ours
from jobs.idempotency.keys import KeyTemplate
from jobs.models import Job

#: The key of jobs without one, in a queue where others have keys: they share one turn. A row holds no empty text.
NO_KEY = "-"

#: The most jobs that a key may get in a turn.
MOST = 1000

#: The last answer of :func:`queues`, and what it was computed from.
_last: tuple[Any, ...] = (None, 0, None, frozenset())


def options_of(fair_key: Any = None, weights: Any = None) -> bool:
    """Whether the options of a queue in ``JOBS["QUEUES"]`` let keys take turns.

    Parameters:
        fair_key: a template over the arguments of its tasks. Tasks that lack one of them have no key.
        weights: how many jobs a key gets in each turn, if it is not one.

    Raises:
        ValueError: says what is allowed.
    """
    if fair_key is not None:
        if not isinstance(fair_key, str):
            raise ValueError(f"fair_key={fair_key!r} must be a template such as '{{customer_id}}'")
        # Any name will do here: which arguments there are is known only for each task.
        names = {name for name in _names(fair_key) if name.isidentifier()}
        KeyTemplate("fair_key", fair_key, inspect.Signature([_argument(each) for each in sorted(names)]))
    if weights is not None:
        is_mapping = isinstance(weights, Mapping) and all(isinstance(key, str) for key in weights)
        if not is_mapping or not all(type(each) is int and 1 <= each <= MOST for each in weights.values()):
            raise ValueError(f"weights={weights!r} must be a dict of keys and whole numbers from 1 to {MOST}")
    return fair_key is not None or bool(weights)


def _argument(name: str) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)


def _names(template: str) -> list[str]:
    try:
        fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError:
        return []
    return [field.partition(".")[0].partition("[")[0] for field in fields]


def _options(queue: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = conf().QUEUES.get(queue, {})
    return found


def weights(queue: str) -> Mapping[str, int]:
    """How many jobs a key gets in each turn, of those that get more than one."""
    return _options(queue).get("weights") or {}


def _is_fair(queue: str) -> bool:
    given = _options(queue)
    return options_of(given.get("fair_key"), given.get("weights"))


def queues(app: Any) -> frozenset[str]:
    """The queues whose keys take turns, as far as the code and the settings say: those of tasks with a key, too."""
    global _last
    tasks = {} if app is None else app.tasks
    made_of = (app, len(tasks), conf())
    if all(old is new or old == new for old, new in zip(_last, made_of, strict=False)):
        return _last[-1]
    keyed = [task for task in tasks.values() if is_ours(task) and "fair_key" in task.key_templates]
    found = frozenset([queue for queue in conf().QUEUES if _is_fair(queue)] + [_queue_of(app, task) for task in keyed])
    _last = (*made_of, found)
    return found


def _queue_of(app: Any, task: Any) -> str:
    """The queue of the task's calls that name no queue."""
    # In Celery's own class this is a property that warns.
    given = inspect.getattr_static(task, "queue", None)
    try:
        queue = given if isinstance(given, str) else app.amqp.router.route({}, task.name, (), {}, task).get("queue")
    except Exception:
        # A router of the project needs the arguments. A worker learns of such a queue when it meets a job in it.
        queue = None
    return name_of(queue) or str(app.conf.task_default_queue)


def mark(task: Any, job: Any) -> None:
    """Give the job of a call its key: its task's, else its queue's. Raises as ``KeyTemplate.of``."""
    template = task.key_templates.get("fair_key")
    if template is None and (text := conf().QUEUES.get(job.queue, {}).get("fair_key")) is not None:
        template = _of_queue(text, task.body_signature)
    if template is not None:
        job.fair_key = _key(template, job)
    elif job.queue in queues(task._get_app()):
        job.fair_key = NO_KEY


@lru_cache(maxsize=1000)
def _of_queue(text: str, signature: inspect.Signature) -> KeyTemplate | None:
    return KeyTemplate("fair_key", text, signature) if set(_names(text)) <= {*signature.parameters} else None


def _key(template: KeyTemplate, job: Job) -> str:
    try:
        return template.of(job.args, job.kwargs)
    except (AttributeError, LookupError) as exc:
        raise ValueError(f"fair_key={template.template!r} finds no key in these arguments: {exc}") from exc
