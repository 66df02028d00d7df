from django.db import models
from django.utils.translation import gettext_lazy as _


class Account(models.Model):
    #: The public id of the customer. It is no foreign key, because the shop may have another database.
    customer = models.UUIDField(_("customer"), unique=True)
    email = models.EmailField(_("e-mail address"), blank=True)
    points = models.PositiveIntegerField(_("points"), default=0)

    class Meta:
        verbose_name = _("account")
        verbose_name_plural = _("accounts")

    def __str__(self) -> str:
        return self.email or str(self.customer)


class Award(models.Model):
    """A ledger with a row for each time that points were given.

    No constraint limits it to one row per event, so that ``manage.py demo`` would see a second one.
    """

    account = models.ForeignKey(Account, models.CASCADE, related_name="awards", verbose_name=_("account"))
    event = models.UUIDField(_("event"))
    points = models.PositiveIntegerField(_("points"))

    class Meta:
        verbose_name = _("award")
        verbose_name_plural = _("awards")
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"{self.account}: {self.points}"
