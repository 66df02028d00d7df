"""Every page, and how somebody gets there."""

from __future__ import annotations

from collections.abc import Callable

from django.urls import reverse
from playwright.sync_api import Page, expect

from jobs.events.models import Event, Subscription
from jobs.models import Effect, Job, Marker, Node, State
from shop.models import Customer
from shop.services import sign_up

LIST, EFFECTS, NODES, MARKERS, LIMITS = (
    reverse(f"admin:jobs_{name}_changelist") for name in ("job", "effect", "node", "marker", "limit")
)
EVENTS, SUBSCRIPTIONS = (reverse(f"admin:jobs_events_{name}_changelist") for name in ("event", "subscription"))
DASHBOARD = reverse("admin:jobs_dashboard")
TASK, QUEUE = reverse("admin:jobs_task"), reverse("admin:jobs_queue")
VERIFY = reverse("admin:jobs_verify")

#: Runs an action of a list: "Go", or "Run" since Django 6.
RUN = "button[name=index]"


def change(row: Job | Effect | Event | Marker | Node | Subscription) -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def job(**which: object) -> Callable[[], str]:
    return lambda: change(Job.objects.filter(**which).order_by("pk")[0])


#: Before there is anything to see.
EMPTY = {
    "dashboard": DASHBOARD,
    "jobs": LIST,
    "effects": EFFECTS,
    "nodes": NODES,
    "markers": MARKERS,
    "limits": LIMITS,
    "events": EVENTS,
    "subscriptions": SUBSCRIPTIONS,
    "verify": VERIFY,
}

#: In the scene; for everybody who may look.
SHOWN: dict[str, Callable[[], str]] = {
    "dashboard": lambda: DASHBOARD,
    "dashboard of the week, by task": lambda: f"{DASHBOARD}?span=week&by=task",
    "task": lambda: f"{TASK}?name=shop.tasks.charge_order",
    "queue": lambda: f"{QUEUE}?name=payments&span=week",
    "jobs": lambda: LIST,
    **{f"job, {state}": job(state=state) for state in State.values},
    "job, retried": job(retries__gt=0),
    "nodes": lambda: NODES,
    "node": lambda: change(Node.objects.order_by("pk")[0]),
    "effects": lambda: EFFECTS,
    "effect": lambda: change(Effect.objects.order_by("pk")[0]),
    "markers": lambda: MARKERS,
    "marker": lambda: change(Marker.objects.order_by("pk")[0]),
    "limits": lambda: LIMITS,
    "events": lambda: EVENTS,
    "event": lambda: change(Event.objects.order_by("pk")[0]),
    "subscriptions": lambda: SUBSCRIPTIONS,
    "subscription": lambda: change(Subscription.objects.order_by("pk")[0]),
    "verify": lambda: VERIFY,
    "sign-up": lambda: "/",
    "customer": lambda: sign_up(Customer(name="Ada", email="ada@example.com")).get_absolute_url(),
}


def confirmation(page: Page) -> None:
    page.goto(f"{LIST}?state__exact=failed")
    page.locator("input[name=_selected_action]").first.check()
    page.get_by_label("Action:").select_option(label="Retry")
    page.locator(RUN).click()
    page.get_by_role("group", name="Which jobs?").wait_for()


def replay(page: Page) -> None:
    page.goto(EVENTS)
    page.locator("input[name=_selected_action]").first.check()
    page.get_by_label("Action:").select_option(label="Replay")
    page.locator(RUN).click()
    page.get_by_label("To which service:").wait_for()


def progress(page: Page) -> None:
    # It would go on by itself.
    page.add_init_script("HTMLFormElement.prototype.submit = () => {}")
    confirmation(page)
    page.get_by_role("button", name="Retry").click()
    page.get_by_role("button", name="Go on").wait_for()


def refused(page: Page) -> None:
    page.goto("/")
    page.locator("form").evaluate("form => form.noValidate = true")
    page.get_by_role("button", name="Sign up").click()
    page.get_by_role("alert").first.wait_for()


#: In the scene; behind a button.
STEPS = {"confirmation": confirmation, "replay": replay, "progress": progress, "sign-up, refused": refused}


def said(hand):
    """What the page says of it, above all else."""
    return expect(hand.page.locator(".messagelist"))
