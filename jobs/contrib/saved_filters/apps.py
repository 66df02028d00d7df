from django.utils.translation import gettext_lazy as _

from jobs import extensions


class SavedFiltersConfig(extensions.OwnApp):
    name = "jobs.contrib.saved_filters"
    label = "jobs_saved_filters"
    verbose_name = _("Saved filters of jobs")
