"""The app's own tasks; ``app.autodiscover_tasks()`` finds them. Extensions have them."""

from jobs import extensions

tuple(extensions.modules("tasks"))
