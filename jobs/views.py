"""Two pages for machines: a health check, and Prometheus' metrics."""

from __future__ import annotations

import secrets

from django.core.exceptions import PermissionDenied
from django.db import Error
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from jobs import census
from jobs.conf import conf
from jobs.models import Job


@never_cache
@require_safe
def health(request: HttpRequest) -> HttpResponse:
    """200 if jobs are run, 503 if not, with the reasons. For everybody: it tells no names.

    It asks for a worker that beats, and for due jobs that are published. It does not ask whether workers keep up with
    their queues: a balancer that takes web servers away for that makes nothing better.
    """
    try:
        found = census.gather(live=True)
    except Error:
        return JsonResponse({"status": "failing", "reasons": ["database"]}, status=503)
    reasons = []
    if not any(node["takes_jobs"] for node in found["nodes"]):
        reasons.append("no_worker")
    if found["relay"]["lag_seconds"] > conf().GRACE:
        reasons.append("relay")
    if not all(mark["adopted"] for mark in found["databases"].values()):
        reasons.append("not_adopted")
    return JsonResponse({"status": "failing" if reasons else "ok", "reasons": reasons}, status=503 if reasons else 200)


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Prometheus' text, for whoever may see jobs: logged in, or with ``Authorization: Bearer`` METRICS_TOKEN."""
    if not _may_scrape(request):
        raise PermissionDenied
    try:
        from jobs.metrics import exposition
    except ModuleNotFoundError as exc:
        return HttpResponse(f"{exc}: pip install 'django-transactional-jobs[metrics]'\n", "text/plain", 501)

    text, kind = exposition()
    return HttpResponse(text, content_type=kind)


def _may_scrape(request: HttpRequest) -> bool:
    token = conf().METRICS_TOKEN
    if token and secrets.compare_digest(request.headers.get("Authorization", "").encode(), f"Bearer {token}".encode()):
        return True
    user = getattr(request, "user", None)
    return bool(user and user.is_active and user.is_staff and user.has_perm(f"{Job._meta.app_label}.view_job"))
