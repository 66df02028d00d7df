"""What may be an argument of a job, and how a row's are read: the public names of ``jobs.models.values``."""

from jobs.models.values import Repr, decoded, normalize

__all__ = ["Repr", "decoded", "normalize"]
