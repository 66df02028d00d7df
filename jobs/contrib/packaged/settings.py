"""What it reads of ``settings.JOBS``."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: Names of Celery apps, as ``Celery("pretix")`` says them, that stand in an installed package, so that nobody can
    #: write ``task_cls`` there: all their tasks are ours, also those with a base class of the package.
    APPS: Sequence[str] = ()
