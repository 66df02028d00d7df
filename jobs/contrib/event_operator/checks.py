"""What is wrong with the handlers of events."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage

from jobs.contrib.checks.system import OF_TASKS, add_texts, say

add_texts("""
W025 Workers do not import these modules, so their handlers get no event: {modules}.
  -> Write app.autodiscover_tasks(related_name='handlers') beside app.autodiscover_tasks(), or import them in tasks.py.
""")


@OF_TASKS.append
def not_imported(app: Any) -> Iterator[CheckMessage]:
    lost = set()
    for config in apps.get_app_configs():
        name, path = f"{config.name}.handlers", Path(config.path)
        file = path / "handlers.py"
        # An app with a celery.py that is not imported here is another service.
        is_ours = f"{config.name}.celery" in sys.modules or not (path / "celery.py").exists()
        if is_ours and name not in sys.modules and file.exists() and "jobs.events" in file.read_text(errors="replace"):
            lost.add(name)
    if lost:
        yield say("W025", modules=lost)
