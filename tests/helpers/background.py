"""Tasks of Django's, in a module that Celery's autodiscovery does not import."""

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

from asgiref.sync import sync_to_async

from jobs.task import Task as CeleryTask
from tests.models import Effect


@task
def add(a, b=1):
    return a + b


@task
def effect(key):
    Effect.objects.create(key=key)
    return key


@task
async def effect_async(key):
    await Effect.objects.acreate(key=key)
    return await sync_to_async(lambda: key)()


@task
def fail(key):
    Effect.objects.create(key=key)
    raise ValueError(f"no {key}")


@task
def no_json():
    return object()


@task(takes_context=True)
def told(context, key):
    """What the context says."""
    result = context.task_result
    return [result.id, context.attempt, result.status, result.args, key]


@task(backend="own", takes_context=True)
def again(context, key):
    """Its effects stay, and it is tried again once."""
    Effect.objects.create(key=key)
    if context.attempt == 1:
        raise OSError("not yet")
    return context.attempt


@task(backend="immediate")
def declared_elsewhere():
    return isinstance(CeleryTask, type)
