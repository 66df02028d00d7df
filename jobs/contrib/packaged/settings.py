"""What it reads of ``settings.JOBS``."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: Names of Celery apps, as in ``Celery("pretix")``, of installed packages, where the project cannot write
    #: ``task_cls``: all their tasks become ours, also those with a base class of the package.
    APPS: Sequence[str] = ()
