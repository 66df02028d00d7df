"""Settings of a project that has an app called ``jobs`` already, and so gives ours another label."""

import sys
import types

from django.apps import AppConfig

from jobs.apps import JobsConfig
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS


class BackgroundJobs(JobsConfig):
    label = "background_jobs"


class Careers(AppConfig):
    name = "tests.relabelled_careers"
    label = "jobs"


_careers = types.ModuleType("tests.relabelled_careers")
_careers.__file__ = __file__
_careers.__path__ = []  # type: ignore[attr-defined]
sys.modules["tests.relabelled_careers"] = _careers

INSTALLED_APPS = [
    *(app for app in INSTALLED_APPS if app != "jobs"),
    "tests.helpers.relabelled.Careers",
    "tests.helpers.relabelled.BackgroundJobs",
]
