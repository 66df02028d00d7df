"""The filters that people have saved."""

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobs import extensions

extensions.need(__package__)


class SavedFilter(models.Model):
    """A filter of the list of jobs."""

    id = models.BigAutoField(primary_key=True)
    #: The name of the user who saved it: jobs may live in another database than users.
    owner = models.CharField(max_length=255)
    name = models.CharField(max_length=100)
    #: The query of the list's URL, without a page.
    query = models.CharField(max_length=2000)
    #: Other people see it, too. Only its owner can delete it.
    is_shared = models.BooleanField(default=False)

    class Meta:
        db_table = "jobs_saved_filter"
        verbose_name = _("saved filter")
        verbose_name_plural = _("saved filters")
        constraints: ClassVar = [models.UniqueConstraint(name="jobs_saved_filter_name", fields=["owner", "name"])]

    def __str__(self) -> str:
        return self.name
