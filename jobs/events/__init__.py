"""Events between services: told with the commit, handled exactly once.

``event`` declares what a service tells of, and ``handler`` what a service does about it.
"""

from jobs.events.declare import EventType, Handled, event, handler

__all__ = ["EventType", "Handled", "event", "handler"]
