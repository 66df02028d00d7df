from django.utils.translation import gettext_lazy as _

from jobs import extensions


class EventsConfig(extensions.OwnApp):
    name = "jobs.events"
    label = "jobs_events"
    verbose_name = _("Events")
