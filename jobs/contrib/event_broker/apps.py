from django.utils.translation import gettext_lazy as _

from jobs import extensions


class EventBrokerConfig(extensions.OwnApp):
    name = "jobs.contrib.event_broker"
    label = "jobs_event_broker"
    verbose_name = _("Events between services")
