"""The course of the demo, and what it counts at the end."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import connections, transaction
from django.db.models import Count, F, QuerySet, Sum
from django.test import Client
from django.urls import reverse
from kombu.exceptions import OperationalError
from tqdm import tqdm

from jobs.contrib.effects.rows import unsettled
from jobs.models import Effect, Job, Node
from shop.celery import app
from shop.demo.loyalty import Loyalty, queue
from shop.demo.mail_server import MailServer
from shop.demo.payment_provider import PaymentProvider
from shop.demo.rabbitmq import RabbitMQ
from shop.demo.worker import Worker
from shop.models import Customer, Order, OrderNote, WelcomeEffect
from shop.services import fetch, place_order
from shop.tasks import fulfil_order, send_welcome_email

#: One customer in so many has deliveries refused, comes after a rollback, or orders something.
REFUSED, ROLLED_BACK, ORDERING = 8, 10, 4

#: The payment provider gives no answer to one charge in so many.
UNANSWERED = 4

#: Seconds without any progress after which the demo gives up.
PATIENCE = 60.0

#: The first run that arrives here waits to be killed. Its effects and its completion are written, but not committed.
LAST_MOMENT = "after_completion"

#: The first process that arrives at one of these is killed: right before the commit of a step, after it, and when a
#: task has begun to wait.
BETWEEN_STEPS = ("before_step", "after_step", "after_suspend")

#: Who has not fetched an order after so many seconds is reminded.
FETCH_WITHIN = 1


class Stuck(Exception):
    """The demo makes no progress any more."""


class _PowerFailure(Exception):
    """Ends a transaction after the answer of the view and before its commit."""


class Show:
    """
    Parameters:
        signups: how many customers sign up for good.
        seed: decides which deliveries fail, who rolls back, and who orders.
        directory: for the workers' logs.
        broker: the broker between the two services; None: they share a database.
        progress: whether to draw progress bars; None: only on a terminal.
    """

    def __init__(
        self, signups: int, seed: int, directory: Path, broker: RabbitMQ | None = None, progress: bool | None = None
    ) -> None:
        self.signups = signups
        self.seed = seed
        self.directory = directory
        self.progress = progress
        self.workers: list[Worker] = []
        #: Signal handlers set it. If they raised an exception, it could get lost in a finalizer.
        self.is_interrupted = False
        self.started = time.monotonic()
        self._name = f"demo-{uuid.uuid4().hex[:8]}"
        self._over = False
        self._lock = threading.Lock()
        #: The workers that were killed between an effect and its commit, and in the middle of a conversation.
        self._killed: tuple[Future[Worker], Future[Worker]] = (Future(), Future())
        self._half_done = 0
        #: What its task has to note of each order, once.
        self._due: Counter[tuple[int, str]] = Counter()

        choice = random.Random(seed)
        self.emails = [f"customer{number}@example.com" for number in range(signups)]
        refused = choice.sample(self.emails, share(signups, REFUSED))
        before = choice.sample(self.emails, share(signups, ROLLED_BACK))
        self.rolled_back = {email: f"undecided-{email}" for email in before}
        self.ordering = set(choice.sample(self.emails, share(signups, ORDERING)))
        self.payments = PaymentProvider(every=UNANSWERED)
        self.loyalty = Loyalty(signups, seed, self._name, directory, broker)
        self.mail = MailServer({email: choice.randint(1, 2) for email in refused}, hold_at=signups // 4 + 2)

    def run(self) -> dict[str, Any]:
        """Run the whole demo; return what happened.

        Raises:
            Stuck: a worker does not start, or jobs do not end.
            KeyboardInterrupt: ``is_interrupted`` was set.
        """
        call_command("migrate", verbosity=0)
        self.mail.start()
        self.payments.start()
        try:
            self._start_worker()
            self._start_worker()
            self.loyalty.start()
            self._wait_for_workers()
            self.loyalty.strike()
            for kill, killed in zip((self._kill_at_commit, self._kill_in_mid_work), self._killed, strict=True):
                threading.Thread(target=self._kill, args=(kill, killed), daemon=True).start()
            self._sign_everybody_up()
            self._wait_for_jobs()
            self._wait_for_loyalty()
            for worker in self.all_workers:
                worker.ask_to_stop()
            for worker in self.all_workers:
                worker.wait(10)
            return self._count()
        finally:
            with self._lock:
                self._over = True
            self.loyalty.end()
            for worker in self.workers:
                worker.kill()
            self.mail.stop()
            self.payments.stop()
            for name in (app.conf.task_default_queue, queue()):
                forget_queue(name)

    # Workers

    @property
    def all_workers(self) -> list[Worker]:
        """The workers of both services."""
        return [*self.workers, *self.loyalty.workers]

    def _start_worker(self) -> None:
        with self._lock:
            if not self._over:
                name = f"{self._name}-{len(self.workers) + 1}"
                env = {
                    "DJANGO_SETTINGS_MODULE": "shop.settings",
                    "EMAIL_HOST": self.mail.host,
                    "EMAIL_PORT": str(self.mail.port),
                    "PAYMENT_URL": self.payments.url,
                    "FETCH_WITHIN": str(FETCH_WITHIN),
                    "JOBS_SYNC_POINTS": ",".join([f"{LAST_MOMENT}=pause", *(f"{each}=kill" for each in BETWEEN_STEPS)]),
                    "JOBS_SYNC_DIR": str(self.directory),
                }
                self.workers.append(Worker(name, self.directory, **env))

    def _wait_for_workers(self) -> None:
        pids = [worker.pid for worker in self.workers]
        deadline = time.monotonic() + PATIENCE
        while Node.objects.filter(pid__in=pids, dead_at=None).count() < len(pids) or not self.loyalty.is_ready:
            for worker in self.all_workers:
                if not worker.is_running():
                    raise Stuck(f"The worker {worker.name} ended with the exit status {worker.process.returncode}.")
            if time.monotonic() > deadline:
                raise Stuck(f"The workers did not start within {PATIENCE:.0f} s.")
            self._pause(0.1)

    def _kill(self, kill: Callable[[], Worker], killed: Future[Worker]) -> None:
        """Kill a worker at its moment, then start another."""
        try:
            victim = kill()
            self._start_worker()
            killed.set_result(victim)
        except BaseException as exc:
            killed.set_exception(exc)
        finally:
            connections.close_all()

    def _kill_at_commit(self) -> Worker:
        """Kill the worker of the first run that has done everything but its commit.

        With an early acknowledgement the broker would have forgotten the job. A row is acknowledged by the commit of
        its effects.
        """
        reached = self.directory / f"{LAST_MOMENT}.reached"
        while not (reached.exists() and (text := reached.read_text())):
            self._pause(0.01)
        victim = next(worker for worker in self.workers if worker.pid == os.getpgid(int(text)))
        victim.kill()
        for job in Job.objects.filter(node__pid=victim.pid, task=send_welcome_email.name, state=Job.State.RUNNING):
            traces = WelcomeEffect.objects.filter(customer__in=job.args)
            self._half_done += traces.exists() or Customer.objects.get(pk=job.args[0]).is_welcome_email_sent
        return victim

    def _kill_in_mid_work(self) -> Worker:
        """Kill the worker that waits for the mail server's answer.

        This is the worst moment of all: the e-mail was accepted, and its sender never learns of it.
        """
        message_id = self.mail.held.result()
        key = message_id.strip("<>").partition("@")[0].replace(".", ":")
        job = Job.objects.select_related("node").get(marker_key=key, state=Job.State.RUNNING)
        victim = next(worker for worker in self.workers if job.node and worker.pid == job.node.pid)
        victim.kill()
        self.mail.released.set()
        return victim

    # Customers

    def _sign_everybody_up(self) -> None:
        ordering = []
        for email in self._bar(self.emails, "signing up"):
            self._pause(0)
            if email in self.rolled_back:
                self._sign_up_and_roll_back(self.rolled_back[email])
            sign_up_on_the_site(email)
            if email in self.ordering:
                ordering.append(email)
            if self._killed[0].done():
                # Until then only e-mails are sent, so the run that is killed sends one.
                ordering = self._place_orders(ordering)
        deadline = time.monotonic() + PATIENCE
        while not self._killed[0].done():
            if time.monotonic() > deadline:
                raise Stuck(f"No worker came to a commit within {PATIENCE:.0f} s.")
            self._pause(0.1)
        self._place_orders(ordering)

    def _place_orders(self, emails: list[str]) -> list[str]:
        for email in emails:
            order = place_order(Customer.objects.get(email=email), cents=1990)
            if is_fetched := bool(order.pk % 2):
                # The signal waits for the task.
                fetch(order)
            self._due.update([(order.pk, "packed"), (order.pk, "fetched" if is_fetched else "reminded")])
        return []

    def _sign_up_and_roll_back(self, email: str) -> None:
        try:
            with transaction.atomic():
                sign_up_on_the_site(email)
                raise _PowerFailure
        except _PowerFailure:
            pass

    # The end

    def _wait_for_jobs(self) -> None:
        """Wait until every job has ended, and each worker that is to die has died."""
        with self._bar(None, "welcoming", total=self.signups + 2 * len(self.ordering)) as bar:
            moved = time.monotonic()
            while True:
                ended = jobs().filter(finished_at__isnull=False).count()
                if ended > bar.n:
                    moved = time.monotonic()
                bar.update(ended - bar.n)
                waiting = jobs().filter(finished_at=None).count()
                if not waiting and all(killed.done() for killed in self._killed):
                    break
                if time.monotonic() - moved > PATIENCE:
                    raise Stuck(f"{waiting} jobs have not ended, and nothing moved for {PATIENCE:.0f} s.")
                self._pause(0.1)
        for killed in self._killed:
            killed.result()

    def _wait_for_loyalty(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.loyalty.is_done:
            if time.monotonic() > deadline:
                raise Stuck(f"The second service was not done within {PATIENCE:.0f} s: {self.loyalty.count()}")
            self._pause(0.1)

    def _count(self) -> dict[str, Any]:
        customers = list(Customer.objects.annotate(effects=Count("welcome_effects")))
        recipients = Counter(recipient for recipient, _ in self.mail.accepted)
        lost = [c.email for c in customers if not (c.is_welcome_email_sent and recipients[c.email])]
        twice = [c.email for c in customers if c.effects > 1]
        undecided = set(self.rolled_back.values())
        unpaid = [str(order) for order in Order.objects.filter(charge="")]
        notes = Counter(OrderNote.objects.values_list("order", "what"))
        totals = Job.objects.aggregate(retries=Sum("retries"), rescued=Sum(F("node_losses") + F("crashes")))
        return {
            "signups": len(customers),
            "rolled_back": len(undecided),
            "mails": len(self.mail.accepted),
            "distinct_mails": len({message_id for _, message_id in self.mail.accepted}),
            "refused": self.mail.refused,
            "retries": totals["retries"] or 0,
            "workers_killed": len({killed.result() for killed in self._killed}),
            "rescued": totals["rescued"] or 0,
            "half_done": self._half_done,
            "payments": Order.objects.exclude(charge="").count(),
            "unanswered": self.payments.unanswered,
            "ambiguous": Effect.objects.filter(calls__gt=1).count(),
            "charged": len(self.payments.ledger.charges),
            "charged_twice": len(self.payments.charged_twice()),
            "reminders": len(set(self.mail.reminders)),
            "killed_between_steps": sum((self.directory / f"{each}.reached").exists() for each in BETWEEN_STEPS),
            "steps_lost": (self._due - notes).total(),
            "steps_twice": (notes - self._due).total(),
            "lost": len(lost),
            "twice": len(twice),
            **self.loyalty.count(),
            "seconds": round(time.monotonic() - self.started, 1),
            "seed": self.seed,
            "problems": [
                *self._problems(customers, lost, twice, undecided & set(recipients)),
                *self._problems_of_payments(unpaid),
                *self._problems_of_orders(notes),
                *self.loyalty.problems(),
            ],
        }

    def _problems(self, customers: Sequence[Customer], lost: list[str], twice: list[str], mails: set[str]) -> list[str]:
        """How the promise was broken, a sentence each."""
        found = []
        if len(customers) != self.signups:
            found.append(f"{len(customers)} customers are there, and {self.signups} signed up.")
        if lost:
            found.append(f"Lost: {', '.join(lost)}.")
        if self._half_done:
            found.append("A worker was killed before its commit, and its effects are there all the same.")
        if twice:
            found.append(f"The effect was committed more than once for {', '.join(twice)}.")
        if rows := {c.email for c in customers} & set(self.rolled_back.values()):
            found.append(f"Rolled back, and yet a customer: {', '.join(sorted(rows))}.")
        if mails:
            found.append(f"Rolled back, and yet welcomed: {', '.join(sorted(mails))}.")
        known = [c.welcome_job for c in customers] + list(Order.objects.values_list("payment_job", flat=True))
        if strangers := jobs().exclude(pk__in=known).exclude(task=fulfil_order.name).count():
            found.append(f"{strangers} jobs belong to no customer.")
        unfinished = Job.objects.exclude(state=Job.State.SUCCEEDED)
        return [*found, *(f"{job} is {job.state}: {job.error}" for job in unfinished)]

    def _problems_of_payments(self, unpaid: list[str]) -> list[str]:
        found = []
        if unpaid:
            found.append(f"Not paid: {', '.join(unpaid)}.")
        if twice := self.payments.charged_twice():
            found.append(f"Charged more than once: {', '.join(twice)}.")
        if open_calls := [str(call) for call in unsettled("default")]:
            found.append(f"Nobody knows whether these happened: {', '.join(open_calls)}.")
        return found

    def _problems_of_orders(self, notes: Counter[tuple[int, str]]) -> list[str]:
        found = []
        if lost := self._due - notes:
            found.append(f"Steps of orders were lost: {sorted(lost)}.")
        if twice := notes - self._due:
            found.append(f"Steps of orders were done twice: {sorted(twice)}.")
        if len(set(self.mail.reminders)) != (due := sum(what == "reminded" for _, what in self._due)):
            found.append(f"{len(set(self.mail.reminders))} reminders were sent, and {due} were due.")
        return found

    def _pause(self, seconds: float) -> None:
        if self.is_interrupted:
            raise KeyboardInterrupt
        time.sleep(seconds)

    def _bar(self, iterable: Any, text: str, **options: Any) -> tqdm:
        disable = None if self.progress is None else not self.progress
        return tqdm(iterable, desc=f"{text:10}", unit="", disable=disable, **options)


def jobs() -> QuerySet[Job]:
    """The jobs of the shop. The second service may have its own jobs in the same table."""
    return Job.objects.exclude(queue=queue())


def share(number: int, one_in: int) -> int:
    """One in so many, but at least one, so that a small demo shows everything as well."""
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


def forget_queue(name: str) -> None:
    """Remove the queue from the broker, which may be shared. Its name belongs to this demo alone."""
    try:
        with app.connection_for_write(connect_timeout=2) as connection:
            found = app.amqp.queues[name](connection.default_channel)
            # kombu's virtual transports remove only the bindings that this connection knows of.
            found.declare()
            found.delete()
            found.exchange.delete()
    except (OSError, OperationalError, *app.connection_for_write().connection_errors):
        # The broker is away.
        pass
