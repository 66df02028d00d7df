"""Django's admin reads this, perhaps before that of ``jobs``. Where there are pages, its own comes last."""

import jobs.admin  # noqa: F401
from jobs import extensions

if "jobs.contrib.pages" in extensions.present():
    from jobs.contrib.saved_filters import page  # noqa: F401
