"""``manage.py demo``: the promise of jobs, shown on this machine within a minute."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection

from shop.demo.rabbitmq import RabbitMQ, free_ports
from shop.demo.worker import kill_orphans

#: The directory of the inner process, which runs on the throw-away database. Only there it is set.
DIRECTORY = "SHOP_DEMO_DIRECTORY"

#: The ports of its RabbitMQ.
PORTS = "SHOP_DEMO_PORTS"

#: So many last lines of each worker's log are shown if something went wrong.
TAIL = 40

ROWS = (
    ("signups", "signed up"),
    ("rolled_back", "rolled back (no row, no job, no e-mail)"),
    ("refused", "deliveries refused by the mail server (451)"),
    ("retries", "retries"),
    ("workers_killed", "workers killed with SIGKILL: in mid-work, and between an effect and its commit"),
    ("rescued", "jobs rescued"),
    ("half_done", "effects left half done"),
    ("mails", "e-mails accepted by the mail server"),
    ("distinct_mails", "distinct e-mails (by Message-ID)"),
    ("payments", "orders paid"),
    ("unanswered", "charges whose answer the payment provider never gave"),
    ("ambiguous", "charges of which nobody knew whether they happened, called again"),
    ("charged", "charges made by the payment provider"),
    ("charged_twice", "orders charged twice"),
    ("reminders", "distinct reminders sent to who did not fetch an order in time"),
    ("killed_between_steps", "processes killed around the commits of these tasks' steps, and as one began to wait"),
    ("steps_lost", "steps of orders lost"),
    ("steps_twice", "steps of orders done twice"),
    ("lost", "lost"),
    ("twice", "effects committed twice"),
    ("events", "events told by the shop: signed up, paid"),
    ("handled", "events handled by the second service"),
    ("points", "points that it gave for them"),
    ("loyalty_killed", "its workers killed with SIGKILL"),
    ("broker_killed", "RabbitMQ killed with SIGKILL, and started again"),
    ("events_lost", "events lost"),
    ("events_twice", "events handled twice"),
    ("seconds", "seconds"),
)

WHY_MORE_MAILS = (
    "The mail server may have accepted an e-mail whose worker was killed before it could note that down: "
    "such an e-mail is sent again under the same Message-ID, so there may be more e-mails than distinct ones."
)


class Command(BaseCommand):
    help = (
        "Signs customers up while deliveries fail, transactions roll back and workers are killed, charges orders at a "
        "payment provider that forgets to answer, while a second service gives points for what the shop tells it, "
        "then counts: nobody is lost, and nothing is done twice. "
        "It needs nothing but requirements.txt: the database (a file, or a new one on the PostgreSQL server of "
        "DATABASE_URL), the mail server and the payment provider are made for the demo and removed at its end; the "
        "broker is that of CELERY_BROKER_URL, or the database; it may be away. Between the two services is a RabbitMQ "
        "of the demo's own, where it is installed; else they share the database. The exit status is 1 when the "
        "promise was broken."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "--signups", type=_positive, default=200, metavar="N", help="customers that sign up (default: 200)"
        )
        parser.add_argument(
            "--seed", type=int, default=1, metavar="N", help="decides what fails, and when (default: 1)"
        )
        parser.add_argument(
            "--without-rabbitmq", action="store_true", help="let both services share a database, as where there is none"
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object, without progress bars")

    def handle(self, *, signups: int, seed: int, json: bool, without_rabbitmq: bool, **options: Any) -> None:
        if directory := os.environ.get(DIRECTORY):
            self.show(Path(directory), signups, seed, json)
        else:
            arguments = [f"--signups={signups}", f"--seed={seed}", *(["--json"] if json else [])]
            self.run_apart([*arguments, *(["--no-color"] if options["no_color"] else [])], not without_rabbitmq)

    # The outer process: prepares, and clears away

    def run_apart(self, arguments: list[str], with_rabbitmq: bool) -> None:
        """Run this command again, in a process whose settings name only throw-away databases and queues."""
        process: subprocess.Popen[bytes] | None = None

        def pass_on(number: int, frame: Any) -> None:
            if process is None:
                raise KeyboardInterrupt
            process.send_signal(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, pass_on)
        with (
            tempfile.TemporaryDirectory(prefix="shop-demo-", ignore_cleanup_errors=True) as directory,
            throw_away_database(Path(directory), "demo") as url,
            throw_away_database(Path(directory), "loyalty") as loyalty_url,
            rabbitmq(Path(directory)) if with_rabbitmq else nullcontext() as broker,
        ):
            # The broker may be shared: nobody else uses a queue of this name.
            queue = f"demo-{uuid.uuid4().hex[:12]}"
            env = {
                **os.environ,
                DIRECTORY: directory,
                PORTS: json.dumps(broker.ports if broker else None),
                "DJANGO_SETTINGS_MODULE": "shop.demo.settings",
                "DATABASE_URL": url,
                "CELERY_TASK_DEFAULT_QUEUE": queue,
                "LOYALTY_QUEUE": f"{queue}-loyalty",
                "LOYALTY_DATABASE_URL": loyalty_url,
                "EVENT_BROKER_URL": broker.url if broker else "",
            }
            command = [sys.executable, "-m", "django", "demo", *arguments]
            process = subprocess.Popen(command, env=env, cwd=settings.BASE_DIR)
            code = process.wait()
            if code < 0:
                kill_orphans(Path(directory))
        if code:
            sys.exit(code if code > 0 else 128 - code)

    # The inner process

    def show(self, directory: Path, signups: int, seed: int, as_json: bool) -> None:
        from shop.demo.show import Show, Stuck

        ports = json.loads(os.environ[PORTS])
        broker = RabbitMQ(directory, ports) if ports else None
        show = Show(signups, seed, directory, broker, progress=False if as_json else None)

        def interrupt(number: int, frame: Any) -> None:
            # The signal comes twice, from the terminal and from our parent. The second must not disturb the clean-up.
            show.is_interrupted = True

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, interrupt)
        try:
            result = show.run()
        except KeyboardInterrupt:
            self.stderr.write("Interrupted.")
            sys.exit(130)
        except Stuck as exc:
            self.print_logs(show)
            raise CommandError(str(exc)) from exc
        except BaseException:
            self.print_logs(show)
            raise
        if result["problems"]:
            self.print_logs(show)
        if as_json:
            self.stdout.write(json.dumps(result))
        else:
            self.print_table(result)
        if result["problems"]:
            raise CommandError("\n".join(["The promise was broken.", *result["problems"]]))

    def print_table(self, result: dict[str, Any]) -> None:
        width = max(len(text) for _, text in ROWS)
        self.stdout.write("")
        for key, text in ROWS:
            line = f"{text:{width}}  {result[key]:>6}"
            if key == "half_done" or key.endswith(("lost", "twice")):
                line = self.style.ERROR(line) if result[key] else self.style.SUCCESS(line)
            self.stdout.write(line)
        self.stdout.write(f"\nThe events went over {result['between']}.\n{WHY_MORE_MAILS}")

    def print_logs(self, show: Any) -> None:
        for worker in show.all_workers:
            self.stderr.write("\n".join([f"--- the log of {worker.name} ends with", *worker.lines()[-TAIL:]]))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ArgumentTypeError(f"{number} is too few: at least one customer has to sign up")
    return number


@contextmanager
def throw_away_database(directory: Path, name: str) -> Iterator[str]:
    """The URL of an empty database, which is gone afterwards.

    Raises:
        CommandError: there is no server at DATABASE_URL, or it is of another kind.
    """
    if connection.vendor == "sqlite":
        yield f"sqlite:///{directory / name}.sqlite3"
        return
    if connection.vendor != "postgresql":
        raise CommandError(
            f"The demo runs on SQLite and PostgreSQL, not on {connection.display_name}: unset DATABASE_URL."
        )
    name = f"shop_{name}_{uuid.uuid4().hex[:12]}"
    quoted = connection.ops.quote_name(name)
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {quoted}")
    except DatabaseError as exc:
        raise CommandError(f"DATABASE_URL: no database can be created there: {exc}") from exc
    try:
        yield urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()
    finally:
        connection.close()
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {quoted} WITH (FORCE)")


@contextmanager
def rabbitmq(directory: Path) -> Iterator[RabbitMQ | None]:
    """Start a RabbitMQ for the demo; None if it is not installed, or does not start here."""
    if not RabbitMQ.is_installed():
        yield None
        return
    server = RabbitMQ(directory, free_ports())
    try:
        yield server if server.start() else None
    finally:
        server.stop()
