"""The course of the demo, and what it counts at the end."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import kombu
from django.core.management import call_command
from django.db import connections, transaction
from django.db.models import Count, F, Sum
from django.test import Client
from django.urls import reverse
from tqdm import tqdm

from jobs import effects, publisher
from jobs.models import Effect, Job, Node
from shop.celery import app
from shop.demo.mail_server import MailServer
from shop.demo.payment_provider import PaymentProvider
from shop.demo.worker import Worker
from shop.models import Customer, Order
from shop.services import place_order

#: One customer in so many: has deliveries refused; gets a second message; has somebody roll back before them; orders.
REFUSED, COPIED, ROLLED_BACK, ORDERING = 8, 8, 10, 4

#: The payment provider dies in one charge of so many, and leaves its client without an answer.
UNANSWERED = 4

#: Seconds without any progress after which the demo gives up.
PATIENCE = 60.0

#: Seconds that the copies of messages get to arrive after the last job ended.
LAST_COPIES = 3.0


class Stuck(Exception):
    """Nothing moves any more."""


class _PowerFailure(Exception):
    """Ends a transaction after the view answered, and before its commit."""


class Show:
    """
    Parameters:
        signups: how many customers sign up for good.
        seed: decides which deliveries fail, who rolls back, and which messages come twice.
        directory: for the workers' logs.
        progress: whether to draw progress bars; None: only on a terminal.
    """

    def __init__(self, signups: int, seed: int, directory: Path, progress: bool | None = None) -> None:
        self.signups = signups
        self.seed = seed
        self.directory = directory
        self.progress = progress
        self.workers: list[Worker] = []
        self.copies = 0
        #: Set by signal handlers: an exception that they raise gets lost when it strikes in a finalizer.
        self.is_interrupted = False
        self.started = time.monotonic()
        self._name = f"demo-{uuid.uuid4().hex[:8]}"
        self._over = False
        self._lock = threading.Lock()
        self._killed: Future[Worker] = Future()

        choice = random.Random(seed)
        self.emails = [f"customer{number}@example.com" for number in range(signups)]
        refused = choice.sample(self.emails, share(signups, REFUSED))
        self.copied = set(choice.sample(self.emails, share(signups, COPIED)))
        before = choice.sample(self.emails, share(signups, ROLLED_BACK))
        self.rolled_back = {email: f"undecided-{email}" for email in before}
        # After the others: a seed still decides what it decided before there were orders.
        self.ordering = set(choice.sample(self.emails, share(signups, ORDERING)))
        self.payments = PaymentProvider(every=UNANSWERED)
        self.mail = MailServer({email: choice.randint(1, 2) for email in refused}, hold_at=signups // 4 + 1)

    def run(self) -> dict[str, Any]:
        """Play it all; returns what happened.

        Raises:
            Stuck: the broker does not answer, a worker does not start, or jobs do not end.
            KeyboardInterrupt: ``is_interrupted`` was set.
        """
        reach_broker()
        call_command("migrate", verbosity=0)
        self.mail.start()
        self.payments.start()
        try:
            self._start_worker()
            self._start_worker()
            self._wait_for_workers()
            threading.Thread(target=self._kill_in_mid_work, daemon=True).start()
            self._sign_everybody_up()
            self._wait_for_jobs()
            self._wait_for_copies()
            for worker in self.workers:
                worker.ask_to_stop()
            for worker in self.workers:
                worker.wait(10)
            return self._count()
        finally:
            with self._lock:
                self._over = True
            for worker in self.workers:
                worker.kill()
            self.mail.stop()
            self.payments.stop()
            forget_queue()

    # Workers

    def _start_worker(self) -> None:
        with self._lock:
            if not self._over:
                name = f"{self._name}-{len(self.workers) + 1}"
                env = {"EMAIL_HOST": self.mail.host, "EMAIL_PORT": str(self.mail.port)}
                env["PAYMENT_URL"] = self.payments.url
                self.workers.append(Worker(name, self.directory, **env))

    def _wait_for_workers(self) -> None:
        pids = [worker.pid for worker in self.workers]
        deadline = time.monotonic() + PATIENCE
        while Node.objects.filter(pid__in=pids, dead_at=None).count() < len(pids):
            for worker in self.workers:
                if not worker.is_running():
                    raise Stuck(f"The worker {worker.name} ended with the exit status {worker.process.returncode}.")
            if time.monotonic() > deadline:
                raise Stuck(f"The workers did not start within {PATIENCE:.0f} s.")
            self._pause(0.1)

    def _kill_in_mid_work(self) -> None:
        """Kill the worker that waits for the mail server's answer, then start another.

        The worst moment that there is: the e-mail was accepted, and its sender never learns of it.
        """
        try:
            message_id = self.mail.held.result()
            key = message_id.strip("<>").partition("@")[0].replace(".", ":")
            job = Job.objects.select_related("node").get(marker_key=key, state=Job.State.RUNNING)
            victim = next(worker for worker in self.workers if job.node and worker.pid == job.node.pid)
            victim.kill()
            self.mail.released.set()
            self._start_worker()
            self._killed.set_result(victim)
        except BaseException as exc:
            self._killed.set_exception(exc)
        finally:
            connections.close_all()

    # Customers

    def _sign_everybody_up(self) -> None:
        for email in self._bar(self.emails, "signing up"):
            self._pause(0)
            if email in self.rolled_back:
                self._sign_up_and_roll_back(self.rolled_back[email])
            sign_up_on_the_site(email)
            if email in self.copied:
                self._deliver_again(email)
            if email in self.ordering:
                place_order(Customer.objects.get(email=email), cents=1990)

    def _sign_up_and_roll_back(self, email: str) -> None:
        try:
            with transaction.atomic():
                sign_up_on_the_site(email)
                raise _PowerFailure
        except _PowerFailure:
            pass

    def _deliver_again(self, email: str) -> None:
        """Publish the job's message once more, as brokers do when they repeat themselves."""
        job = Job.objects.get(pk=Customer.objects.get(email=email).welcome_job)
        if not publisher.publish([job], "default", app):
            self.copies += 1

    # The end

    def _wait_for_jobs(self) -> None:
        """Until every job has ended, and the worker that was to die has died."""
        with self._bar(None, "welcoming", total=self.signups + len(self.ordering)) as bar:
            moved = time.monotonic()
            while True:
                ended = Job.objects.filter(finished_at__isnull=False).count()
                if ended > bar.n:
                    moved = time.monotonic()
                bar.update(ended - bar.n)
                waiting = Job.objects.filter(finished_at=None).count()
                if not waiting and self._killed.done():
                    break
                if time.monotonic() - moved > PATIENCE:
                    raise Stuck(f"{waiting} jobs have not ended, and nothing moved for {PATIENCE:.0f} s.")
                self._pause(0.1)
        self._killed.result()

    def _wait_for_copies(self) -> None:
        """The queue may still hold copies, which must do no harm: let the workers look at them."""
        deadline = time.monotonic() + LAST_COPIES
        while self._duplicates_suppressed() < self.copies and time.monotonic() < deadline:
            self._pause(0.1)

    def _duplicates_suppressed(self) -> int:
        return sum(line.endswith(": a duplicate message") for worker in self.workers for line in worker.lines())

    def _count(self) -> dict[str, Any]:
        customers = list(Customer.objects.annotate(effects=Count("welcome_effects")))
        recipients = Counter(recipient for recipient, _ in self.mail.accepted)
        lost = [c.email for c in customers if not (c.is_welcome_email_sent and recipients[c.email])]
        twice = [c.email for c in customers if c.effects > 1]
        undecided = set(self.rolled_back.values())
        unpaid = [str(order) for order in Order.objects.filter(charge="")]
        totals = Job.objects.aggregate(retries=Sum("retries"), rescued=Sum(F("node_losses") + F("crashes")))
        return {
            "signups": len(customers),
            "rolled_back": len(undecided),
            "mails": len(self.mail.accepted),
            "distinct_mails": len({message_id for _, message_id in self.mail.accepted}),
            "refused": self.mail.refused,
            "retries": totals["retries"] or 0,
            "copies": self.copies,
            "duplicates_suppressed": self._duplicates_suppressed(),
            "workers_killed": int(self._killed.done()),
            "rescued": totals["rescued"] or 0,
            "payments": Order.objects.exclude(charge="").count(),
            "unanswered": self.payments.unanswered,
            "ambiguous": Effect.objects.filter(calls__gt=1).count(),
            "charged": len(self.payments.ledger.charges),
            "charged_twice": len(self.payments.charged_twice()),
            "lost": len(lost),
            "twice": len(twice),
            "seconds": round(time.monotonic() - self.started, 1),
            "seed": self.seed,
            "problems": [
                *self._problems(customers, lost, twice, undecided & set(recipients)),
                *self._problems_of_payments(unpaid),
            ],
        }

    def _problems(self, customers: Sequence[Customer], lost: list[str], twice: list[str], mails: set[str]) -> list[str]:
        """How the promise was broken, a sentence each."""
        found = []
        if len(customers) != self.signups:
            found.append(f"{len(customers)} customers are there, and {self.signups} signed up.")
        if lost:
            found.append(f"Lost: {', '.join(lost)}.")
        if twice:
            found.append(f"The effect was committed more than once for {', '.join(twice)}.")
        if rows := {c.email for c in customers} & set(self.rolled_back.values()):
            found.append(f"Rolled back, and yet a customer: {', '.join(sorted(rows))}.")
        if mails:
            found.append(f"Rolled back, and yet welcomed: {', '.join(sorted(mails))}.")
        known = [c.welcome_job for c in customers] + list(Order.objects.values_list("payment_job", flat=True))
        if strangers := Job.objects.exclude(pk__in=known).count():
            found.append(f"{strangers} jobs belong to no customer.")
        unfinished = Job.objects.exclude(state=Job.State.SUCCEEDED)
        return [*found, *(f"{job} is {job.state}: {job.error}" for job in unfinished)]

    def _problems_of_payments(self, unpaid: list[str]) -> list[str]:
        found = []
        if unpaid:
            found.append(f"Not paid: {', '.join(unpaid)}.")
        if twice := self.payments.charged_twice():
            found.append(f"Charged more than once: {', '.join(twice)}.")
        if unsettled := [str(call) for call in effects.unsettled("default")]:
            found.append(f"Nobody knows whether these happened: {', '.join(unsettled)}.")
        return found

    def _pause(self, seconds: float) -> None:
        if self.is_interrupted:
            raise KeyboardInterrupt
        time.sleep(seconds)

    def _bar(self, iterable: Any, text: str, **options: Any) -> tqdm:
        disable = None if self.progress is None else not self.progress
        return tqdm(iterable, desc=f"{text:10}", unit="", disable=disable, **options)


def share(number: int, one_in: int) -> int:
    """At least one, so that a small demo shows everything as well."""
    return max(1, number // one_in)


def sign_up_on_the_site(email: str) -> None:
    """What a browser does: get the form with its CSRF token, then post it."""
    browser = Client(enforce_csrf_checks=True)
    url = reverse("sign_up")
    browser.get(url)
    token = browser.cookies["csrftoken"].value
    response = browser.post(url, {"name": "A customer", "email": email, "csrfmiddlewaretoken": token})
    if response.status_code != 302:
        raise RuntimeError(
            f"the sign-up of {email} was answered with {response.status_code}: {response.content.decode()}"
        )


def reach_broker() -> None:
    """Sign-ups would work without it, and the jobs wait: a demo has no time for that."""
    with app.connection_for_write(connect_timeout=3) as connection:
        try:
            connection.ensure_connection(max_retries=1, timeout=5)
        except kombu.exceptions.OperationalError as exc:
            raise Stuck(f"CELERY_BROKER_URL: no broker answers at {connection.as_uri()}: {exc}") from exc


def forget_queue() -> None:
    """The queue has this demo's own name; a broker that is shared must not keep it."""
    try:
        with app.connection_for_write(connect_timeout=2) as connection:
            queue = app.amqp.queues[app.conf.task_default_queue](connection.default_channel)
            # kombu's virtual transports remove only the bindings that this connection knows of.
            queue.declare()
            queue.delete()
            queue.exchange.delete()
    except (OSError, *app.connection_for_write().connection_errors):
        # The broker is gone, and the queue with it.
        pass
