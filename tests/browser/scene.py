"""A shop on a busy day: the same jobs each time, told from the moment in which it is set."""

from __future__ import annotations

import datetime
import math
import uuid

from django.db import transaction
from django.utils import timezone

from jobs.contrib.kept_logs.models import LogLines
from jobs.contrib.operator.models import Statistic
from jobs.contrib.operator.statistics import HOUR, MINUTE, bucket, floor
from jobs.contrib.pauses import pauses
from jobs.contrib.saved_filters.models import SavedFilter
from jobs.events.models import Event, Subscription
from jobs.models import Action, Batch, Effect, Job, Limit, Marker, Node, Pause, Schedule
from jobs.models.fields import first_id
from jobs.store import databases
from shop.models import Customer
from tests.helpers.rows import let_heartbeat

WELCOME, CHARGE = "shop.tasks.send_welcome_email", "shop.tasks.charge_order"
IMPORT, SUMMARY = "shop.tasks.import_orders", "shop.tasks.summarize"
QUEUES = {WELCOME: "mail", CHARGE: "payments", IMPORT: "imports", SUMMARY: "celery"}
REFUSED = "[Errno 111] Connection refused"
TRACEBACK = f"""Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 48, in send_welcome_email
    welcome_email(customer, message_id=f"<{{message_id}}@shop.example.com>").send()
  File "/usr/lib/python3.11/smtplib.py", line 341, in connect
    self.sock = self._get_socket(host, port, self.timeout)
ConnectionRefusedError: {REFUSED}
"""


def wave(ago: int) -> int:
    """Of customers: from 2 to 11."""
    return round(6 + 3 * math.sin(ago / 7)) + (ago * 7 % 5 - 2)


def seconds(number: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=number)


class Scene:
    """
    Attributes:
        job: failed twice, and waits for its third attempt in a paused queue.
        batch: all but two of its jobs have ended.
    """

    @transaction.atomic
    def __init__(self) -> None:
        self.now = timezone.now()
        self.number = 0
        self.nodes = [self.node(name, up) for name, up in (("worker1", 7 * 3600), ("worker2", 7 * 3600 + 40))]
        for state, task, ago, more in LINES:
            self.put(state, task, ago, **more)
        self.job = self.retried()
        Action.objects.create(
            job=self.job.pk, at=self.now - seconds(140), what="run", by="ada", why="the mail server is back"
        )
        self.calls()
        self.events()
        Limit.objects.create(name="@payments", concurrency=5, rate="100/m", by="ada")
        self.batch = Batch.objects.create(name="import 7", made_at=self.now - seconds(80))
        for state, ago in (*[("succeeded", 70)] * 7, ("failed", 60), ("running", 20), ("ready", 2)):
            self.put(state, IMPORT, ago, [f"part {self.number}"], batch=self.batch)
        self.schedules()
        Marker.objects.create(key="welcome:4710", kind="task", job=Job.objects.filter(task=WELCOME).first().pk)
        Marker.objects.create(key="newsletter:2026-11", kind="once")
        self.history()
        pauses.pause("mail", "ada", "the mail server is moved")
        Pause.objects.update(at=self.now - seconds(150))

    def key(self, name: str) -> uuid.UUID:
        self.number += 1
        return uuid.uuid5(uuid.NAMESPACE_URL, f"{name}/{self.number}")

    def node(self, hostname: str, up: float) -> Node:
        values = {"version": "shop-2.4", "pool": "prefork", "concurrency": 4, "queues": [*QUEUES.values()]}
        node = Node.objects.create(
            id=self.key("node"),
            hostname=hostname,
            pid=4711,
            tasks=[*QUEUES],
            started_at=self.now - seconds(up),
            **values,
        )
        let_heartbeat(node)
        return node

    def put(self, state: str, task: str, ago: float, args: list | None = None, ran: float = 0.4, **more) -> Job:
        """A job that was due so many seconds ago."""
        due = self.now - seconds(ago)
        created = more.pop("created_at", min(due, self.now))
        values = {
            "id": uuid.UUID(int=first_id(created).int | self.key("job").int & 0x3FFF_FFFF_FFFF_FFFF),
            "run_at": due,
        }
        if state != "scheduled" and state != "ready":
            values |= {"node": self.nodes[self.number % 2], "started_at": due + seconds(0.05), "lease": 1}
        if state == "running":
            values["token"] = self.number
        if state in ("succeeded", "failed", "cancelled"):
            values["finished_at"] = due + seconds(0.05 + ran)
        if state in ("failed", "cancelled"):
            values["error"] = {"type": "PaymentError", "message": "card declined", "traceback": "", "attempt": 1}
            values["error"]["at"] = values["finished_at"].isoformat()
        row = {"task": task, "queue": QUEUES[task], "state": state, "args": args or [self.number]}
        return Job.objects.create(**row, **{**values, **more})

    def retried(self) -> Job:
        at = [self.now - seconds(ago) for ago in (190, 130)]
        errors = [
            {"type": "ConnectionRefusedError", "message": REFUSED, "traceback": TRACEBACK, "at": moment.isoformat(),
             "attempt": attempt}
            for attempt, moment in enumerate(at, 1)
        ]  # fmt: skip
        times = {"created_at": at[0] - seconds(2), "started_at": at[1] - seconds(1), "node": self.nodes[0]}
        return self.put(
            "scheduled", WELCOME, -95, [4711], lease=2, retries=2, errors=errors, error=errors[-1],
            marker_key="welcome:4711", **times,
        )  # fmt: skip

    def more(self) -> Job:
        """What makes parts of pages fuller than whole pages are to be: a night's calls, lines of a log, saved filters.

        Returns:
            the first job of the calls.
        """
        first = self.put("succeeded", IMPORT, 20, ["partner.jsonl"], ran=3.1)
        body = {"task": SUMMARY, "options": {"task_id": str(self.key("body"))}}
        for index, (state, ago, ran) in enumerate((("succeeded", 16, 2.4), ("succeeded", 15, 5.2), ("running", 13, 0))):
            called = {"parent_id": first.pk, "root": first.pk, "created_at": self.now - seconds(17)}
            options = {"chord": body, "group_index": index}
            charged = self.put(state, CHARGE, ago, [1041 + index], ran, options=options, **called)
            if ran:
                called |= {"parent_id": charged.pk, "created_at": charged.finished_at}
                self.put("ready" if index else "succeeded", WELCOME, ago - ran - 1, ran=1.5, **called)
        for attempt, ago in ((1, 195), (2, 135)):
            at = (self.now - seconds(ago)).timestamp()
            lines = [
                [at, "INFO", "shop.tasks", "Welcome customer 4711"],
                [at + 0.012, "DEBUG", "shop.mail", "Connecting to mail.example.com:587"],
                [at + 5.013, "WARNING", "shop.mail", f"mail.example.com:587: {REFUSED}"],
            ]
            LogLines.objects.create(job=self.job.pk, attempt=attempt, lines={"first": lines, "dropped": 0, "last": []})
        for owner, name, query in (
            ("ada", "Cards declined", "error=PaymentError&state__exact=failed"),
            ("ada", "Failed", "state__exact=failed"),
            ("bob", "Mails that wait", "queue=mail&state__exact=ready"),
        ):
            SavedFilter.objects.create(owner=owner, name=name, query=query, is_shared=True)
        Customer.objects.create(pk=4711, name="Grace", email="grace@example.com")
        return first

    def schedules(self) -> None:
        paused = {"paused_at": self.now - seconds(4000), "paused_by": "ada"}
        missed = {"missed": 1, "missed_at": self.now - seconds(7200), "last_run": self.now - seconds(90000)}
        for name, task, timing, ago, due, more in (
            ("report", SUMMARY, "0 16 * * 1-5", 60000, 26000, {}),
            ("import", IMPORT, "every 5 min", 75, 225, {}),
            ("clean up", SUMMARY, "30 7 * * *", 7200, 79200, missed),
            ("newsletter", WELCOME, "0 9 * * 2", 200000, 86400, paused),
        ):
            last = self.now - seconds(ago)
            job = Job.objects.filter(task=task, state="succeeded").order_by("pk")[0]
            Schedule.objects.create(**{
                "name": name, "task": task, "timing": timing, "definition": "x", "defined_at": last, "last_tick": last,
                "next_tick": self.now + seconds(due), "last_run": last, "last_job": job.pk, **more
            })  # fmt: skip

    def events(self) -> None:
        """Told by a job, published, and handled; what the handler told of in turn."""
        given = {"service": "shop", "pattern": "shop.order.*", "queue": "celery", "since": self.now - seconds(90000)}
        Subscription.objects.create(handler=SUMMARY, **given)
        cause = Job.objects.filter(task=CHARGE, state="succeeded")[0]
        for number, name in enumerate(("shop.order.paid", "shop.customer.summarized"), 41):
            event = Event.objects.create(
                uuid=self.key("event"), name=name, source="shop", data={"order_id": 1041}, order_key="1041",
                headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, number=number,
                at=self.now - seconds(40), relayed_at=self.now - seconds(39), sent_at=self.now - seconds(38),
                job=cause.pk,
            )  # fmt: skip
            cause = self.put("succeeded", SUMMARY, 30, parent_id=event.uuid)

    def calls(self) -> None:
        charged = Job.objects.filter(task=CHARGE, state="failed").first()
        for number, state in enumerate(("parked", "sent", "sent", "sending")):
            answer = {"id": f"ch_{number}"} if state == "sent" else None
            Effect.objects.create(
                name="charge", key=f"order-{1041 + number}", job=charged.pk, lease=1, state=state, answer=answer,
                created_at=self.now - seconds(600 * number + 60), sent_at=self.now if answer else None,
            )  # fmt: skip

    def history(self) -> None:
        """What ended in the last hour, and in the last week."""
        last = floor(databases.clock("default"), MINUTE)
        rows = [row for ago in range(60) for row in tallies(60, last - ago * MINUTE, wave(ago))]
        for ago in range(24 * 7):
            rows += tallies(3600, floor(last, HOUR) - ago * HOUR, 60 * wave(ago))
        Statistic.objects.bulk_create(rows)


def spread(seconds: float, count: int) -> dict[str, int]:
    """Most take about that long, and one of twelve three times as long."""
    slow = count // 12
    return {str(bucket(seconds)): count - slow, str(bucket(3 * seconds)): slow}


def tallies(length: int, begin: datetime.datetime, many: int) -> list[Statistic]:
    rows = [
        (WELCOME, "succeeded", "", 9 * many, 0.35, 0.06),
        (CHARGE, "succeeded", "", 4 * many, 0.9, 0.04),
        (SUMMARY, "succeeded", "", many, 0.02, 0.01),
        (WELCOME, "failed", "ConnectionRefusedError", many // 4, 5.0, 1.2),
        (CHARGE, "failed", "PaymentError", many // 6, 0.6, 0.05),
        (IMPORT, "cancelled", "Cancelled", many // 10, 0.1, 0.1),
    ]
    return [
        Statistic(
            length=length, begin=begin, task=task, queue=QUEUES[task], state=state, error=error, count=count,
            ran=spread(ran, count), waited=spread(waited * (1 + many / 6), count),
        )
        for task, state, error, count, ran, waited in rows
        if count
    ]  # fmt: skip


#: State, task, and how many seconds ago it was due; what is special about it.
LINES: list[tuple[str, str, float, dict]] = [
    ("succeeded", SUMMARY, 3000, {"args": ["2026-11-20"]}),
    ("failed", CHARGE, 900, {}),
    ("cancelled", IMPORT, 600, {"args": ["partner.jsonl"]}),
    ("succeeded", CHARGE, 300, {}),
    ("succeeded", WELCOME, 280, {"result": None}),
    ("failed", CHARGE, 200, {}),
    ("succeeded", CHARGE, 120, {}),
    ("running", IMPORT, 75, {"args": ["partner.jsonl"]}),
    ("ready", WELCOME, 60, {}),
    ("ready", WELCOME, 45, {}),
    ("ready", CHARGE, 3, {}),
    ("running", CHARGE, 1, {"queue_slot": 1}),
    ("scheduled", SUMMARY, -7 * 3600, {"args": ["2026-11-21"]}),
]
