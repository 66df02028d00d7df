"""Pages for machines: a health check, and Prometheus' metrics."""

import secrets

from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from jobs.conf import conf
from jobs.contrib.operator import status
from jobs.models import Job


@never_cache
@require_safe
def health(request: HttpRequest) -> HttpResponse:
    """200 if jobs are run, 503 if not, with the reasons. It needs no login, because it reveals no names.

    For load balancers it is ``failing`` (503) only where no job runs at all: no worker beats, scheduled jobs do not
    become ready, the database is a copy or away. It is ``degraded`` (200) if a queue has had jobs and no worker for
    :data:`status.FORSAKEN` seconds: it would not help if a balancer removed web servers for that. Monitoring that
    calls a person then uses ``?strict``, which makes it 503, too. It does not check whether workers keep up, so it
    takes the same few milliseconds under any backlog.
    """
    failing, degraded = status.ailments()
    says = "failing" if failing else "degraded" if degraded else "ok"
    is_bad = failing or (degraded and "strict" in request.GET)
    return JsonResponse({"status": says, "reasons": [*failing, *degraded]}, status=503 if is_bad else 200)


for _alias in connections:
    # With ATOMIC_REQUESTS Django asks the database before the view: that it is away would be an error, and no answer.
    transaction.non_atomic_requests(using=_alias)(health)


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Prometheus' text, for users who may see jobs: logged in, or with ``Authorization: Bearer`` METRICS_TOKEN."""
    token, user = conf().METRICS_TOKEN, getattr(request, "user", None)
    given = request.headers.get("Authorization", "").encode()
    is_machine = bool(token) and secrets.compare_digest(given, f"Bearer {token}".encode())
    # The project may have given this app another label.
    may_look = user and user.is_active and user.is_staff and user.has_perm(f"{Job._meta.app_label}.view_job")
    if not is_machine and not may_look:
        raise PermissionDenied
    try:
        from jobs.contrib.operator.metrics import exposition
    except ModuleNotFoundError as exc:
        return HttpResponse(f"{exc}: pip install 'django-transactional-jobs[metrics]'\n", "text/plain", 501)
    text, kind = exposition()
    return HttpResponse(text, content_type=kind)
