"""Bodies that are ``async def``: many at once on a process's event loop, with a short transaction at their end."""

PRIVATE = """
celery.utils.threads:_LocalStack.__ident_func__ - | aio/celery_stacks.py: a request is its coroutine's, on any thread
celery._state:_task_stack - | aio/celery_stacks.py: so is the current task
"""
