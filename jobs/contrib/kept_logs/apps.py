from django.utils.translation import gettext_lazy as _

from jobs import extensions


class KeptLogsConfig(extensions.OwnApp):
    name = "jobs.contrib.kept_logs"
    label = "jobs_kept_logs"
    verbose_name = _("Logs of jobs")
