import uuid

from django.db import models
from django.db.models.functions import Lower
from django.urls import reverse
from django.utils.translation import gettext_lazy as _


class Customer(models.Model):
    #: It stands in URLs. A primary key there could be guessed by counting.
    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    email = models.EmailField(_("e-mail address"))
    name = models.CharField(_("name"), max_length=100)
    created_at = models.DateTimeField(_("signed up at"), auto_now_add=True)
    is_welcome_email_sent = models.BooleanField(_("welcome e-mail sent"), default=False)
    #: The id of the job. It is no foreign key, because ended jobs are pruned while customers stay.
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
    #: The payment provider knows the order by this id. A restored database could use a primary key a second time.
    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    customer = models.ForeignKey(Customer, models.CASCADE, related_name="orders", verbose_name=_("customer"))
    cents = models.PositiveIntegerField(_("amount in cents"))
    created_at = models.DateTimeField(_("ordered at"), auto_now_add=True)
    #: The provider's id of the charge; empty as long as the order is not paid.
    charge = models.CharField(_("charge"), max_length=100, blank=True, editable=False)
    #: The id of the job, as of :attr:`Customer.welcome_job`.
    payment_job = models.UUIDField(_("payment job"), null=True, blank=True, editable=False)

    class Meta:
        verbose_name = _("order")
        verbose_name_plural = _("orders")
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return str(self.public_id)


class OrderNote(models.Model):
    """What was done for an order, a row for each time that it was committed.

    No constraint limits it to one row for each, so that ``manage.py demo`` would see a second one.
    """

    class What(models.TextChoices):
        PACKED = "packed", _("packed")
        FETCHED = "fetched", _("fetched")
        REMINDED = "reminded", _("reminded")

    order = models.ForeignKey(Order, models.CASCADE, related_name="notes", verbose_name=_("order"))
    what = models.CharField(_("what"), max_length=8, choices=What.choices)
    created_at = models.DateTimeField(_("at"), auto_now_add=True)

    class Meta:
        verbose_name = _("order note")
        verbose_name_plural = _("order notes")

    def __str__(self) -> str:
        return f"{self.order_id}: {self.what}"


class Import(models.Model):
    """How far a partner's feed was read."""

    source = models.CharField(_("source"), max_length=255, unique=True)
    position = models.PositiveIntegerField(_("lines read"), default=0)
    #: The lock token of the last writer. A run with a smaller token must not write any more.
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
    #: CSV; its first line names the columns: name, email.
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
    """A ledger with a row for each time that the welcome task's effects were committed.

    No constraint limits it to one row per customer, so that ``manage.py demo`` would see a second one.
    """

    customer = models.ForeignKey(Customer, models.CASCADE, related_name="welcome_effects", verbose_name=_("customer"))
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)

    class Meta:
        verbose_name = _("welcome effect")
        verbose_name_plural = _("welcome effects")

    def __str__(self) -> str:
        return f"{self.customer_id}: {self.created_at:%Y-%m-%d %H:%M:%S}"
