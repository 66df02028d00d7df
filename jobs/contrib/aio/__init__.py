"""Bodies that are ``async def``: many at once on a process's event loop, with a short transaction at their end."""

PRIVATE = """
celery.utils.threads:_LocalStack.__ident_func__ - | aio/owner.py: a request is its coroutine's, whatever thread runs it
celery._state:_task_stack -                       | aio/owner.py: so is the current task
"""
