import uuid

from django.db import models
from django.db.models.functions import Lower
from django.urls import reverse
from django.utils.translation import gettext_lazy as _


class Customer(models.Model):
    #: Stands in addresses, where a primary key could be counted up.
    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    email = models.EmailField(_("e-mail address"))
    name = models.CharField(_("name"), max_length=100)
    created_at = models.DateTimeField(_("signed up at"), auto_now_add=True)
    is_welcome_email_sent = models.BooleanField(_("welcome e-mail sent"), default=False)
    #: The id of the job. No foreign key: jobs that ended are pruned, customers stay.
    welcome_job = models.UUIDField(_("welcome job"), null=True, blank=True, editable=False)

    class Meta:
        verbose_name = _("customer")
        verbose_name_plural = _("customers")
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                Lower("email"),
                name="shop_customer_email_unique",
                violation_error_code="unique",
                violation_error_message=_("A customer with this e-mail address has already signed up."),
            )
        ]

    def __str__(self) -> str:
        return self.email

    def get_absolute_url(self) -> str:
        return reverse("customer", args=[self.public_id])


class Order(models.Model):
    #: What the payment provider knows the order by. A primary key could come again, in a database that was restored.
    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    customer = models.ForeignKey(Customer, models.CASCADE, related_name="orders", verbose_name=_("customer"))
    cents = models.PositiveIntegerField(_("amount in cents"))
    created_at = models.DateTimeField(_("ordered at"), auto_now_add=True)
    #: The provider's id of the charge; empty: not paid yet.
    charge = models.CharField(_("charge"), max_length=100, blank=True, editable=False)
    #: The id of the job, as of :attr:`Customer.welcome_job`.
    payment_job = models.UUIDField(_("payment job"), null=True, blank=True, editable=False)

    class Meta:
        verbose_name = _("order")
        verbose_name_plural = _("orders")
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return str(self.public_id)


class Import(models.Model):
    """How far a partner's feed was read."""

    source = models.CharField(_("source"), max_length=255, unique=True)
    position = models.PositiveIntegerField(_("lines read"), default=0)
    #: The lock's token of who wrote last: nobody with a smaller one may write again.
    fence = models.BigIntegerField(default=0, editable=False)

    class Meta:
        verbose_name = _("import")
        verbose_name_plural = _("imports")

    def __str__(self) -> str:
        return self.source


class CustomerFile(models.Model):
    """A list of customers that somebody handed in, and the job that takes them over."""

    #: As of :attr:`Customer.public_id`.
    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    #: CSV with a head: name, email.
    text = models.TextField(_("text"))
    created_at = models.DateTimeField(_("handed in at"), auto_now_add=True)
    #: The id of the job, as of :attr:`Customer.welcome_job`.
    job = models.UUIDField(_("job"), null=True, blank=True, editable=False)

    class Meta:
        verbose_name = _("customer file")
        verbose_name_plural = _("customer files")
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return str(self.public_id)

    def get_absolute_url(self) -> str:
        return reverse("customer_file", args=[self.public_id])


class DailySummary(models.Model):
    day = models.DateField(_("day"), unique=True)
    signups = models.PositiveIntegerField(_("sign-ups"))
    orders = models.PositiveIntegerField(_("orders"))

    class Meta:
        verbose_name = _("daily summary")
        verbose_name_plural = _("daily summaries")
        ordering = ["-day"]

    def __str__(self) -> str:
        return f"{self.day}: {self.signups}"


class WelcomeEffect(models.Model):
    """A ledger: one row for every time that the welcome task's effects were committed.

    No constraint keeps it at one row per customer, so that ``manage.py demo`` can count.
    """

    customer = models.ForeignKey(Customer, models.CASCADE, related_name="welcome_effects", verbose_name=_("customer"))
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)

    class Meta:
        verbose_name = _("welcome effect")
        verbose_name_plural = _("welcome effects")

    def __str__(self) -> str:
        return f"{self.customer_id}: {self.created_at:%Y-%m-%d %H:%M:%S}"
