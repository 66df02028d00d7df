"""What users of pretix cause, and what its workers leave: run in its own environment, with its own settings.

``python flows.py FILE`` starts a worker, lets each flow happen, and writes what each left as JSON: the same for stock
Celery and for jobs. A random name (a code, an id, a time) is in none of it.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import django

django.setup()

from aiosmtpd.controller import Controller  # noqa: E402
from celery.result import AsyncResult  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.test import Client  # noqa: E402
from django.utils.timezone import now  # noqa: E402
from django_scopes import scopes_disabled  # noqa: E402
from pretix.api.models import WebHook, WebHookCall  # noqa: E402
from pretix.base.models import (  # noqa: E402
    Event,
    Invoice,
    NotificationSetting,
    Order,
    Organizer,
    OutgoingMail,
    Team,
    TeamAPIToken,
    User,
    WaitingListEntry,
)
from pretix.base.services.cancelevent import cancel_event  # noqa: E402
from pretix.base.services.cart import add_items_to_cart  # noqa: E402
from pretix.base.services.orders import perform_order  # noqa: E402
from pretix.base.settings import GlobalSettingsObject  # noqa: E402
from pretix.plugins.sendmail.tasks import send_mails_to_orders  # noqa: E402

HOST = "localhost:8000"
PLUGINS = ("banktransfer", "manualpayment", "ticketoutputpdf", "sendmail")
#: A body that is in a mail's own server, as the process that is to be killed there.
HELD = "held@example.com"


def until(condition: Callable[[], Any], what: str, timeout: float = 90) -> Any:
    end = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout} s in vain: {what}")
        time.sleep(0.1)
    return value


class Mails:
    """A mail server: it keeps what it took, and answers some addresses as they say."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, Any]] = []
        self.asked: dict[str, int] = {}
        self.release = threading.Event()
        self.controller = Controller(self, hostname="127.0.0.1", port=settings.EMAIL_PORT)
        self.controller.start()

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        [to] = envelope.rcpt_tos
        self.asked[to] = self.asked.get(to, 0) + 1
        if to.startswith("later@") and self.asked[to] == 1:
            return "452 Insufficient system storage"
        if to.startswith("refused@"):
            return "554 No thanks"
        self.taken.append((to, message_from_bytes(envelope.content)))
        if to == HELD and self.asked[to] == 1:
            # It has the mail, and its sender dies before it hears that.
            import asyncio

            while not self.release.is_set():
                await asyncio.sleep(0.05)
        return "250 OK"

    def to(self, address: str, count: int = 1) -> list[list[Any]]:
        """Subject and attached files of each mail to an address, as soon as there are so many."""
        until(lambda: sum(to == address for to, _ in self.taken) >= count, f"{count} mails to {address}")
        with scopes_disabled():
            sent = OutgoingMail.objects.filter(to=[address])
            until(lambda: not sent.filter(status__in=["queued", "inflight"]).exists(), "they are said to be sent")
        found = []
        for to, mail in self.taken:
            if to == address:
                parts = [part for part in mail.walk() if part.get_filename()]
                files = [[part.get_filename(), part.get_payload(decode=True)[:5].decode("latin1")] for part in parts]
                found.append([str(mail["Subject"]), files])
        return sorted(found)


class Hooks:
    """A server of webhooks: it keeps what it was told, and answers as the path says."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        told = self.told

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                told.append((self.path, body))
                is_first = sum(path == self.path for path, _ in told) == 1
                self.send_response({"/gone": 410, "/fails-once": 500 if is_first else 200}.get(self.path, 200))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}{path}"


class Shop:
    """An organizer with an event that sells tickets, and somebody who uses its API."""

    def __init__(self, slug: str) -> None:
        self.mails, self.hooks = MAILS, HOOKS
        plugins = ",".join(f"pretix.plugins.{name}" for name in PLUGINS)
        self.organizer = Organizer.objects.create(name="Ada", slug=slug, plugins=plugins)
        self.event = Event.objects.create(
            organizer=self.organizer,
            name="Conference",
            slug="conf",
            currency="EUR",
            date_from=now() + timedelta(days=60),
            live=True,
            plugins=plugins,
        )
        self.item = self.event.items.create(name="Ticket", default_price=Decimal("23.00"), admission=True)
        self.quota = self.event.quotas.create(name="Tickets", size=100)
        self.quota.items.add(self.item)
        for name, value in {
            "payment_banktransfer__enabled": True,
            "payment_banktransfer_bank_details": "IBAN",
            "payment_banktransfer_invoice_immediately": False,
            "ticket_download": True,
            "ticketoutput_pdf__enabled": True,
            "invoice_generate": "paid",
            "invoice_email_attachment": True,
            "invoice_address_from": "Here",
            "invoice_renderer": "classic",
            "locales": ["en"],
            "locale": "en",
            "timezone": "UTC",
        }.items():
            self.event.settings.set(name, value)
        team = Team.objects.create(
            organizer=self.organizer,
            name="All",
            all_events=True,
            all_event_permissions=True,
            all_organizer_permissions=True,
        )
        self.user = User.objects.create_user(f"user-{slug}@example.com", "a password of 3 words")
        team.members.add(self.user)
        token = TeamAPIToken.objects.create(team=team, name="API")
        self.client = Client(raise_request_exception=False, HTTP_HOST=HOST, HTTP_AUTHORIZATION=f"Token {token.token}")

    def api(self, path: str, data: Any = None, method: str = "post", status: int = 201) -> Any:
        url = f"/api/v1/organizers/{self.organizer.slug}/events/{self.event.slug}/{path}"
        if method == "get":
            answer = self.client.get(url)
        else:
            answer = self.client.post(url, json.dumps(data or {}), content_type="application/json")
        assert answer.status_code == status, (path, answer.status_code, answer.content[:1000])
        return answer.json()

    def order(self, code: str, email: str = "", **more: Any) -> Order:
        person = {"item": self.item.pk, "attendee_name_parts": {"_scheme": "given_family", "given_name": "Ann"}}
        position = {"price": "23.00", "answers": [], **person}
        data = {"code": code, "email": email or f"{code.lower()}@example.com", "locale": "en", "positions": [position]}
        self.api("orders/", {"payment_provider": "banktransfer", "sales_channel": "web", **data, **more})
        return Order.objects.get(code=code, event=self.event)

    def polled(self, url: str) -> Any:
        """The answer, as soon as there is one. pretix asks twice whether a task has ended, and answers 500 if it ends
        between the two: who polls asks again.
        """
        return until(lambda: got if (got := self.client.get(url)).status_code not in (409, 500) else None, url)

    def until_logged(self, order: Order, action: str) -> None:
        """pretix saves what became of a mail, then its log: with stock Celery these are two commits."""
        until(order.all_logentries().filter(action_type=action).exists, f"the log says {action}")

    def says(self, order: Order) -> dict[str, Any]:
        """What stands in the database of an order."""
        order.refresh_from_db()
        return {
            "status": order.status,
            "total": str(order.total),
            "log": sorted(order.all_logentries().values_list("action_type", flat=True)),
            "mails": sorted(OutgoingMail.objects.filter(order=order).values_list("status", "error")),
            "payments": sorted(order.payments.values_list("provider", "state")),
            "positions": sorted((each.item.name.localize("en"), str(each.price)) for each in order.positions.all()),
            "invoices": [
                (number, bool(file), transmission)
                for number, file, transmission in order.invoices.order_by("pk").values_list(
                    "invoice_no", "file", "transmission_status"
                )
            ],
        }

    def result(self, called: Any) -> list[Any]:
        """What the page sees that asks for the result of a task by its id."""
        result = AsyncResult(called.id)
        until(result.ready, f"the result of {called.id}")
        return [result.state, type(result.info).__name__, str(result.info) if result.failed() else ""]


FLOWS: dict[str, Callable[[Shop], Any]] = {}


def flow(function: Callable[[Shop], Any]) -> Callable[[Shop], Any]:
    FLOWS[function.__name__] = function
    return function


@flow
def order_by_the_api(shop: Shop) -> Any:
    """An order, its row and its mail."""
    order = shop.order("AAAA1", send_email=True)
    return shop.mails.to("aaaa1@example.com"), shop.says(order)


@flow
def checkout(shop: Shop) -> Any:
    """What the shop's pages do: a task fills the cart, another makes the order, and a page waits for each."""
    cart = "cart-of-ann"
    items = [{"item": shop.item.pk, "variation": None, "count": 2}]
    filled = shop.result(add_items_to_cart.apply_async(args=(shop.event.pk, items, cart, "en")))
    keys = list(shop.event.cartposition_set.filter(cart_id=cart).values_list("pk", flat=True))
    payment = {
        "id": "1",
        "provider": "banktransfer",
        "max_value": None,
        "min_value": None,
        "multi_use_supported": False,
        "info_data": {},
    }
    called = perform_order.apply_async(
        args=(shop.event.pk, [payment], keys), kwargs={"email": "buyer@example.com", "locale": "en"}
    )
    bought = shop.result(called)
    order = Order.objects.get(event=shop.event, email="buyer@example.com")
    is_its = AsyncResult(called.id).get()["order_id"] == order.pk
    return filled, len(keys), bought, is_its, len(shop.mails.to(order.email)), shop.says(order)


@flow
def sold_out(shop: Shop) -> Any:
    """A task ends with an error that it declares, and the page says it at once."""
    shop.event.quotas.update(size=0)
    items = [{"item": shop.item.pk, "variation": None, "count": 1}]
    try:
        return shop.result(add_items_to_cart.apply_async(args=(shop.event.pk, items, "cart-of-bob", "en")))
    finally:
        shop.event.quotas.update(size=100)


@flow
def paid_with_invoice_and_ticket(shop: Shop) -> Any:
    """A payment: its mail has the invoice, which another task printed, and the ticket."""
    order = shop.order("BBBB1")
    shop.api("orders/BBBB1/mark_paid/", {"send_email": True}, status=200)
    mails = shop.mails.to("bbbb1@example.com")
    until(lambda: Invoice.objects.filter(order=order).exclude(file="").exists(), "the invoice is printed")
    shop.until_logged(order, "pretix.event.order.invoice.sent")
    [invoice] = order.invoices.all()
    return mails, invoice.file.read(4).decode("latin1"), shop.says(order)


@flow
def canceled(shop: Shop) -> Any:
    order = shop.order("CCCC1")
    shop.api("orders/CCCC1/mark_canceled/", {"send_email": True}, status=200)
    return shop.mails.to("cccc1@example.com"), shop.says(order)


@flow
def export(shop: Shop) -> Any:
    """An export by the API: polled until its file is there."""
    for number in range(3):
        shop.order(f"DDDD{number}7")
    url = shop.api("exporters/orderlist/run/", {"_format": "orders:default"}, status=202)["download"]
    answer = shop.polled(url)
    rows = list(csv.reader(io.StringIO(b"".join(answer.streaming_content).decode())))
    orders = [row for row in rows if any(cell.startswith("DDDD") for cell in row)]
    return answer.status_code, answer["Content-Type"], rows[0], len(orders)


@flow
def export_without_data(shop: Shop) -> Any:
    """It fails, and who polls is told at once."""
    other = Shop("empty")
    url = other.api("exporters/invoices/run/", status=202)["download"]
    began = time.monotonic()
    answer = other.polled(url)
    return answer.status_code, answer.json(), time.monotonic() - began < 60


@flow
def tickets_of_several(shop: Shop) -> Any:
    """One PDF of several tickets, by the API; the task's result is a UUID."""
    positions = [shop.order(f"EEEE{number}7").positions.get().pk for number in range(2)]
    data = {"parts": [{"orderposition": each} for each in positions]}
    url = shop.api("ticketpdfrenderer/render_batch/", data, status=202)["download"]
    answer = shop.polled(url)
    return answer.status_code, answer["Content-Type"], b"".join(answer.streaming_content)[:4].decode("latin1")


def hook(shop: Shop, path: str, code: str, calls: int) -> Any:
    webhook = WebHook.objects.create(organizer=shop.organizer, target_url=shop.hooks.url(path), all_events=True)
    webhook.listeners.create(action_type="pretix.event.order.placed")
    shop.order(code)
    made = WebHookCall.objects.filter(webhook=webhook).order_by("pk")
    until(lambda: made.count() >= calls, f"{calls} calls of {path}")
    rows = list(made.values_list("action_type", "return_code", "success", "is_retry"))
    told = [body for where, body in shop.hooks.told if where == path]
    webhook.refresh_from_db()
    is_enabled = webhook.enabled
    webhook.delete()
    return rows, [[each["action"], each["code"]] for each in told], is_enabled


@flow
def webhook(shop: Shop) -> Any:
    return hook(shop, "/fine", "FFFF1", 1)


@flow
def webhook_that_fails_once(shop: Shop) -> Any:
    """The task calls itself again, with a countdown."""
    return hook(shop, "/fails-once", "GGGG1", 2)


@flow
def webhook_that_is_gone(shop: Shop) -> Any:
    return hook(shop, "/gone", "HHHH1", 1)


@flow
def mail_server_is_full_at_first(shop: Shop) -> Any:
    """The task saves "awaiting retry", which the pages show, and calls ``self.retry()``."""
    order = shop.order("JJJJ1", "later@example.com", send_email=True)
    mail = OutgoingMail.objects.filter(order=order)
    until(lambda: shop.mails.asked.get("later@example.com"), "the first try")
    until(lambda: mail.exclude(status__in=["queued", "inflight"]).exists(), "it is said")
    between = list(mail.values_list("status", "error"))
    return between, shop.mails.to("later@example.com"), shop.says(order)


@flow
def mail_that_is_refused(shop: Shop) -> Any:
    order = shop.order("KKKK1", "refused@example.com", send_email=True)
    until(lambda: OutgoingMail.objects.filter(order=order, status="failed").exists(), "it is said")
    shop.until_logged(order, "pretix.event.order.email.error")
    return shop.says(order), shop.mails.asked["refused@example.com"]


@flow
def notification(shop: Shop) -> Any:
    """A user hears of an order: three tasks, each called by the one before."""
    wish = NotificationSetting.objects.create(
        user=shop.user, event=shop.event, action_type="pretix.event.order.placed", method="mail", enabled=True
    )
    shop.order("LLLL1")
    mails = shop.mails.to(shop.user.email)
    wish.delete()
    return [subject for subject, _ in mails]


@flow
def periodic_tasks(shop: Shop) -> Any:
    """``runperiodic``, as pretix's cron job: orders expire, and who waits gets a voucher, which a task makes."""
    order = shop.order("MMMM1")
    Order.objects.filter(pk=order.pk).update(expires=now() - timedelta(days=30), datetime=now() - timedelta(days=60))
    entry = WaitingListEntry.objects.create(event=shop.event, item=shop.item, email="waits@example.com", locale="en")
    call_command("runperiodic")
    mails = shop.mails.to("waits@example.com")
    entry.refresh_from_db()
    return mails, entry.voucher is not None, shop.says(order)


@flow
def mail_to_all(shop: Shop) -> Any:
    """The plugin that writes to all who ordered: one task, a mail for each."""
    orders = [shop.order(f"NNNN{number}7") for number in range(3)]
    send_mails_to_orders.apply_async(
        kwargs={
            "event": shop.event.pk,
            "user": shop.user.pk,
            "subject": {"en": "News"},
            "message": {"en": "Hello {code}"},
            "objects": [each.pk for each in orders],
            "items": [shop.item.pk],
            "subevent": None,
            "subevents_from": None,
            "subevents_to": None,
            "recipients": "orders",
            "filter_checkins": False,
            "not_checked_in": False,
            "checkin_lists": [],
        }
    )
    return [shop.mails.to(each.email) for each in orders], [shop.says(each) for each in orders]


@flow
def canceled_event(shop: Shop) -> Any:
    """All orders of an event are canceled by a task, which reports its progress, and mails."""
    other = Shop("canceled")
    orders = [other.order(f"PPPP{number}7") for number in range(3)]
    called = cancel_event.apply_async(
        kwargs={
            "event": other.event.pk,
            "subevent": None,
            "auto_refund": True,
            "keep_fee_fixed": "0.00",
            "keep_fee_per_ticket": "0.00",
            "keep_fee_percentage": "0.00",
            "send": True,
            "send_subject": {"en": "Canceled"},
            "send_message": {"en": "Sorry, {code}"},
            "user": other.user.pk,
        }
    )
    said = shop.result(called)
    return said, [shop.mails.to(each.email) for each in orders], [other.says(each) for each in orders]


@flow
def worker_is_killed_after_the_mail(shop: Shop) -> Any:
    """The mail's server has it, and the process dies: "in flight" was committed before, so no second one is sent."""
    order = shop.order("QQQQ1", HELD, send_email=True)
    until(lambda: shop.mails.asked.get(HELD), "the mail is under way")
    WORKER.kill_busy()
    shop.mails.release.set()
    after = shop.order("RRRR1", send_email=True)  # the worker goes on
    shop.mails.to(after.email)
    if "jobs" in settings.INSTALLED_APPS:
        from jobs.models import Job

        mail = Job.objects.filter(task="pretix.base.services.mail.mail_send_task")
        until(lambda: not mail.filter(state__in=("ready", "running")).exists(), "the job has been run again")
    return shop.mails.asked[HELD], shop.says(order)


def what_ran(log: Path) -> dict[str, list[str]]:
    """The tasks of pretix that ran as jobs, and those that came as messages, as a worker of Celery says it."""
    jobs: list[str] = []
    if "jobs" in settings.INSTALLED_APPS:
        from jobs.models import Job

        jobs = list(Job.objects.values_list("task", flat=True).distinct())
    messages = re.findall(r"Task (pretix[\w.]+)\[[\w-]+\] received", log.read_text())
    return {"jobs": sorted(set(jobs)), "messages": sorted(set(messages))}


class Worker:
    def __init__(self, log: Path) -> None:
        # Its two processes take no more than this machine has.
        command = [sys.executable, "-m", "celery", "-A", "pretix.celery_app", "worker", "-l", "INFO", "-c", "2"]
        with log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def kill_busy(self) -> None:
        """SIGKILL to those of its processes that talk with the mail's server."""
        [port] = {f"{settings.EMAIL_PORT:04X}"}
        sockets = {
            line.split()[9]
            for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
            if line.split()[2].endswith(f":{port}")
        }
        for pid in self.children():
            held = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
            if {f"socket:[{each}]" for each in sockets} & held:
                os.kill(pid, signal.SIGKILL)
                return
        raise AssertionError("no process of the worker sends a mail")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


MAILS, HOOKS = Mails(), Hooks()

if __name__ == "__main__":
    path, wanted = Path(sys.argv[1]), sys.argv[2:]
    found: dict[str, Any] = {}
    log = path.with_suffix(".log")
    WORKER = Worker(log)
    try:
        with scopes_disabled():
            # It asks a server of pretix's.
            GlobalSettingsObject().settings.set("update_check_perform", False)
            shop = Shop("ada")
            for name, happens in FLOWS.items():
                if wanted and name not in wanted:
                    continue
                began = time.monotonic()
                try:
                    found[name] = {"left": happens(shop)}
                except Exception:
                    found[name] = {"raised": traceback.format_exc()}
                sys.stderr.write(f"{name}: {time.monotonic() - began:.1f} s\n")
            path.write_text(json.dumps({"flows": found, "run": what_ran(log)}, indent=1, default=str))
    finally:
        WORKER.stop()
        MAILS.controller.stop()
