"""The example site: what a newcomer copies must be right."""

from __future__ import annotations

import re
import smtplib
import uuid
from datetime import timedelta

import pytest
from django.core import mail
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.models import Job
from jobs.testing import run_jobs
from shop import views
from shop.forms import SignUpForm
from shop.models import Customer, CustomerFile, DailySummary, Import, Order, WelcomeEffect
from shop.services import ask_for_data, fetch, place_order, sign_up
from shop.tasks import collect_data, fulfil_order, import_customers, import_orders, send_welcome_email, summarize
from tests.helpers.harness import Worker, deliver
from tests.helpers.servers import free_port, wait_for
from tests.helpers.why import first

pytestmark = pytest.mark.django_db(transaction=True)

ADA = {"name": "Ada", "email": "ada@example.com"}


@pytest.fixture
def ada() -> Customer:
    return Customer.objects.create(**ADA)


def text(response) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", response.content.decode()).split())


def labelled_inputs(page: str) -> set[str]:
    return set(re.findall(r'<label for="([^"]+)"', page)) & set(re.findall(r'<input[^>]* id="([^"]+)"', page))


# Signing up


def test_form_is_a_labelled_page_with_a_language(client):
    page = client.get("/").content.decode()
    assert '<html lang="en"' in page
    assert labelled_inputs(page) == {"id_name", "id_email"}
    assert "<main>" in page
    assert "<script" not in page


def test_sign_up_saves_the_customer_and_exactly_one_job(client):
    response = client.post("/", ADA)
    customer = Customer.objects.get()
    job = Job.objects.get()
    assert (customer.name, customer.email, customer.is_welcome_email_sent) == ("Ada", "ada@example.com", False)
    assert (job.pk, job.task, job.args) == (customer.welcome_job, "shop.tasks.send_welcome_email", [customer.pk])
    assert response.status_code == 302
    assert response["Location"] == customer.get_absolute_url()


@pytest.mark.parametrize("data", [{}, {**ADA, "email": "ada"}, {**ADA, "name": " "}, {**ADA, "name": "x" * 101}])
def test_invalid_sign_up_is_explained_and_saves_nothing(client, data):
    response = client.post("/", {"name": "", "email": "", **data})
    assert response.status_code == 200
    assert 'aria-invalid="true"' in response.content.decode()
    assert 'role="alert"' in response.content.decode()
    assert not Customer.objects.exists()
    assert not Job.objects.exists()


def test_an_empty_post_is_an_invalid_sign_up(client):
    assert "This field is required." in text(client.post("/"))


def test_taken_address_is_an_error_of_the_email_field_whatever_its_case(client, ada):
    response = client.post("/", {**ADA, "email": "ADA@example.com"})
    assert response.context["form"].errors == {"email": ["A customer with this e-mail address has already signed up."]}
    assert Customer.objects.get() == ada
    assert not Job.objects.exists()


def lose_the_race(monkeypatch) -> None:
    """Somebody else signs up with the address after the form was validated."""

    def somebody_was_faster(customer: Customer) -> Customer:
        Customer.objects.create(name="Somebody", email=customer.email.upper())
        return sign_up(customer)

    monkeypatch.setattr(views, "sign_up", somebody_was_faster)


def test_address_that_is_taken_in_the_last_moment_is_the_same_form_error(client, monkeypatch):
    lose_the_race(monkeypatch)
    response = client.post("/", ADA)
    assert response.context["form"].errors == {"email": ["A customer with this e-mail address has already signed up."]}
    assert Customer.objects.get().name == "Somebody"
    assert not Job.objects.exists()


def test_lost_race_leaves_an_outer_transaction_usable(client, monkeypatch):
    lose_the_race(monkeypatch)
    with transaction.atomic():
        assert client.post("/", ADA).status_code == 200
        assert Customer.objects.get().name == "Somebody"


def test_other_integrity_errors_are_not_taken_for_a_taken_address(client, monkeypatch):
    def fail(customer: Customer) -> Customer:
        raise IntegrityError("another constraint")

    monkeypatch.setattr(views, "sign_up", fail)
    with pytest.raises(IntegrityError, match="another constraint"):
        client.post("/", ADA)


def test_post_without_csrf_token_is_refused():
    assert Client(enforce_csrf_checks=True).post("/", ADA).status_code == 403
    assert not Customer.objects.exists()


def test_error_after_the_delay_leaves_neither_customer_nor_job(client, monkeypatch):
    def fail(self, *args, **kwargs):
        if kwargs.get("update_fields"):
            assert Job.objects.count() == 1
            raise RuntimeError("the power failed")
        return save(self, *args, **kwargs)

    save = Customer.save
    monkeypatch.setattr(Customer, "save", fail)
    with pytest.raises(RuntimeError, match="the power failed"):
        client.post("/", ADA)
    assert not Customer.objects.exists()
    assert not Job.objects.exists()


# The customer's page


def test_page_shows_the_sign_up_and_its_job(client):
    page = text(client.post("/", ADA, follow=True))
    assert "Welcome, Ada" in page
    assert "ada@example.com" in page
    assert f"ready ( {Job.objects.get().pk} )" in page
    assert "not sent yet" in page


def test_page_lives_longer_than_the_job(client):
    customer = sign_up(Customer(**ADA))
    Job.objects.all().delete()
    assert "no longer kept" in text(client.get(customer.get_absolute_url()))


def test_page_escapes_what_customers_typed(client):
    customer = sign_up(Customer(name="<script>alert(1)</script>", email="ada@example.com"))
    assert b"<script" not in client.get(customer.get_absolute_url()).content


def test_pages_of_customers_cannot_be_counted_up(client, ada):
    assert client.get(reverse("customer", args=[uuid.uuid4()])).status_code == 404
    assert client.get(f"/customer/{ada.pk}/").status_code == 404


def test_customers_are_in_the_admin(admin_client, ada):
    assert "ada@example.com" in text(admin_client.get("/admin/shop/customer/"))
    assert admin_client.get(f"/admin/shop/customer/{ada.pk}/change/").status_code == 200


# The welcome e-mail


def welcome(customer_id: int, **options):
    """Run the task here, in a transaction as a worker does."""
    with transaction.atomic():
        return send_welcome_email.apply((customer_id,), **options)


def test_welcome_email_has_text_html_and_the_key_as_message_id(ada):
    result = welcome(ada.pk)
    [message] = mail.outbox
    assert result.successful()
    assert message.to == ["ada@example.com"]
    assert message.subject == "Welcome to the shop"
    assert message.message()["Message-ID"] == f"<welcome.{ada.pk}@shop.example.com>"
    assert message.body.startswith("Hello Ada,\n")
    [html] = message.alternatives
    assert html.mimetype == "text/html"
    assert "<p>Hello Ada,</p>" in html.content


def test_names_are_escaped_in_html_only():
    customer = Customer.objects.create(name="O'Hara & <Sons>", email="ada@example.com")
    welcome(customer.pk)
    [message] = mail.outbox
    assert "Hello O'Hara & <Sons>," in message.body
    assert "Hello O&#x27;Hara &amp; &lt;Sons&gt;," in message.alternatives[0].content


def test_second_run_sends_nothing(ada):
    for _ in range(2):
        welcome(ada.pk)
    assert len(mail.outbox) == 1
    assert WelcomeEffect.objects.filter(customer=ada).count() == 1
    ada.refresh_from_db()
    assert ada.is_welcome_email_sent


def test_customer_who_left_gets_nothing():
    assert welcome(4711).successful()
    assert not mail.outbox


@pytest.mark.parametrize("error", [smtplib.SMTPDataError(451, b"later"), ConnectionRefusedError(), TimeoutError()])
def test_mail_server_in_trouble_means_a_later_try_and_no_effect(ada, monkeypatch, error):
    def fail(*args):
        raise error

    monkeypatch.setattr("django.core.mail.backends.locmem.EmailBackend.send_messages", fail)
    result = welcome(ada.pk, retries=send_welcome_email.max_retries)
    assert isinstance(result.result, type(error))
    assert send_welcome_email.max_retries == 8
    ada.refresh_from_db()
    assert not ada.is_welcome_email_sent
    assert not WelcomeEffect.objects.exists()


def test_mail_server_that_recovers_is_tried_again_with_the_same_message_id(ada, monkeypatch):
    seen = []

    def fail_twice(self, messages):
        seen.extend(message.message()["Message-ID"] for message in messages)
        if len(seen) < 3:
            raise smtplib.SMTPServerDisconnected("gone")
        return 1

    monkeypatch.setattr("django.core.mail.backends.locmem.EmailBackend.send_messages", fail_twice)
    result = welcome(ada.pk)
    assert result.successful()
    assert seen == [f"<welcome.{ada.pk}@shop.example.com>"] * 3


def test_form_does_not_let_customers_set_what_is_not_theirs():
    assert set(SignUpForm().fields) == {"name", "email"}


def deliver_all(*results):
    return [deliver(result) for result in results]


def test_two_jobs_for_one_customer_welcome_once(node, ada):
    results = [send_welcome_email.delay(ada.pk), send_welcome_email.delay(ada.pk)]
    deliver_all(*results)
    [message] = mail.outbox
    assert message.message()["Message-ID"] == f"<welcome.{ada.pk}@shop.example.com>"
    assert WelcomeEffect.objects.count() == 1
    assert str(Job.objects.get(pk=results[1].id).replay_of) == results[0].id


def test_an_import_goes_on_where_the_last_one_ended(node, ada, tmp_path):
    feed = tmp_path / "partner.jsonl"
    feed.write_text('{"email": "ada@example.com", "cents": 100}\n')
    deliver(import_orders.delay(str(feed)))
    with feed.open("a") as lines:
        lines.write('{"email": "ADA@example.com", "cents": 200}\n')
    assert deliver_all(import_orders.delay(str(feed)), import_orders.delay(str(feed))) == [
        ("SUCCESS", 1),
        ("SUCCESS", 0),
    ]
    assert sorted(ada.orders.values_list("cents", flat=True)) == [100, 200]


def test_an_import_that_comes_too_late_writes_nothing(node, ada, tmp_path):
    feed = tmp_path / "partner.jsonl"
    feed.write_text('{"email": "ada@example.com", "cents": 100}\n')
    Import.objects.create(source=str(feed), fence=2**62)
    assert deliver(import_orders.delay(str(feed))) == ("SUCCESS", 0)
    assert not Order.objects.exists()


def test_a_summary_is_asked_for_often_and_made_once(node, ada):
    day = ada.created_at.date().isoformat()
    first, second = summarize.delay(day), summarize.delay(day)
    assert second.id == first.id
    deliver(first)
    assert DailySummary.objects.get().signups == 1
    deliver(summarize.delay(day))
    assert DailySummary.objects.count() == 1


def test_a_task_of_django_is_a_job_as_well(node, ada):
    """``django.tasks``, or the package of Django 5.2."""
    order = place_order(ada, 1200)
    with transaction.atomic():
        ask_for_data(ada)
        transaction.set_rollback(True)
    assert not Job.objects.filter(task="shop.tasks.collect_data").exists()
    key = ask_for_data(ada)
    assert collect_data.get_result(key).status == "READY"
    deliver(Job.objects.get(pk=key))
    data = collect_data.get_result(key).return_value
    assert (data["email"], data["orders"]) == (
        "ada@example.com",
        [{"id": str(order.public_id), "cents": 1200, "paid": False}],
    )


def test_a_customers_data_are_collected_from_the_admin(admin_client, ada):
    chosen = {"action": "collect_data", "_selected_action": [ada.pk]}
    page = admin_client.post(reverse("admin:shop_customer_changelist"), chosen, follow=True)
    job = Job.objects.get()
    assert (job.task, job.args) == ("shop.tasks.collect_data", [ada.pk])
    assert str(job.pk) in page.content.decode()


# An order, from the parcel to the customer


@pytest.fixture
def order(ada) -> Order:
    """It is paid, and on its way."""
    order = Order.objects.create(customer=ada, cents=1990, charge="ch_1")
    fulfil_order.delay(order.pk)
    return order


def notes(order: Order) -> list[str]:
    return list(order.notes.order_by("pk").values_list("what", flat=True))


def days(number: float):
    return timezone.now() + timedelta(days=number)


def test_an_order_is_packed_when_it_is_paid(ada, monkeypatch):
    monkeypatch.setattr("shop.payments.charge", lambda *given, **more: {"id": "ch_1"})
    order = place_order(ada, 1990)
    run_jobs()
    assert notes(order) == ["packed"]
    assert Job.objects.get(task=fulfil_order.name).waits_for == f"signal:fetched:{order.public_id}"


def test_who_fetches_an_order_in_time_is_not_reminded(order, admin_client):
    run_jobs(until=days(6))
    chosen = {"action": "fetched", "_selected_action": [order.pk]}
    for _ in range(2):
        admin_client.post(reverse("admin:shop_order_changelist"), chosen)
    run_jobs(until=days(60))
    assert notes(order) == ["packed", "fetched"]
    assert not mail.outbox
    assert Job.objects.get(task=fulfil_order.name).state == "succeeded"
    assert "fetched" in text(admin_client.get(f"/admin/shop/order/{order.pk}/change/"))


def test_an_order_that_is_fetched_while_it_is_packed_is_fetched(order):
    fetch(order)
    run_jobs(until=days(60))
    assert notes(order) == ["fetched", "packed"]
    assert not mail.outbox


def test_who_does_not_fetch_an_order_is_reminded_once(order):
    run_jobs(until=days(6))
    assert not mail.outbox
    run_jobs(until=days(8))
    [message] = mail.outbox
    assert (message.to, message.subject) == (["ada@example.com"], "Your order is waiting for you")
    assert str(order.public_id) in message.body
    fetch(order)
    assert run_jobs(until=days(60)) == []
    assert notes(order) == ["packed", "reminded", "fetched"]


def test_a_reminder_that_is_refused_is_tried_again_and_nothing_else(order, monkeypatch):
    seen = []

    def refuse(self, messages):
        seen.extend(message.message()["Message-ID"] for message in messages)
        if len(seen) < 3:
            raise smtplib.SMTPServerDisconnected("gone")
        return 1

    monkeypatch.setattr("django.core.mail.backends.locmem.EmailBackend.send_messages", refuse)
    run_jobs(until=days(8))
    job = Job.objects.get(task=fulfil_order.name)
    assert seen == [f"<remind.{job.pk}@shop.example.com>"] * 3
    assert notes(order) == ["packed", "reminded"]


# A file of customers


def test_a_file_of_customers_is_taken_over_in_parts(client, node, monkeypatch):
    monkeypatch.setattr("shop.tasks.PART", 2)
    lines = "name,email\n" + "".join(f"C{n},c{n}@example.com\n" for n in range(5)) + "C0,C0@example.com\n"
    response = client.post(reverse("hand_in"), {"file": SimpleUploadedFile("c.csv", lines.encode())})
    file = CustomerFile.objects.get()
    assert response["Location"] == file.get_absolute_url()
    page = client.get(file.get_absolute_url()).content.decode()
    assert "<progress" in page
    # The run before was lost after its first part.
    Job.objects.filter(pk=file.job).update(cursor=2)
    deliver(import_customers.AsyncResult(str(file.job)))
    assert set(Customer.objects.values_list("name", flat=True)) == {"C2", "C3", "C4", "C0"}
    assert Job.objects.get(pk=file.job).cursor == 6
    assert 'value="100"' in client.get(file.get_absolute_url()).content.decode()


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"surname,email\nx,y\n"])
def test_what_is_no_file_of_customers_is_explained(client, content):
    response = client.post(reverse("hand_in"), {"file": SimpleUploadedFile("c.csv", content)})
    assert response.status_code == 200
    assert "errorlist" in response.content.decode()
    assert not CustomerFile.objects.exists()


def test_mail_server_that_is_away():
    customer = Customer.objects.create(email="ada@example.com")
    with Worker(EMAIL_HOST="127.0.0.1", EMAIL_PORT=str(free_port())):
        job = send_welcome_email.delay(customer.pk)
        wait_for(lambda: Job.objects.filter(pk=job.id, state="scheduled", retries__gte=2).exists(), 30, "two retries")
        reason = first(job.id)
    assert reason["code"] == "retry"
    assert "ConnectionRefusedError" in reason["says"]
    assert reason["evidence"]["retries"] >= 2
