"""The progress of a job, for a site's own pages."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from jobs.contrib.progress import public


@never_cache
@require_safe
def progress(request: HttpRequest, token: str) -> HttpResponse:
    """How far a job or a batch is, for any person who has the signed URL; ``{% job_progress %}`` makes it.

    It shows the state, and what the body reported by ``self.progress()``, but no arguments, result or error.
    """
    found = public.by_token(token)
    return JsonResponse({}, status=404) if found is None else JsonResponse(public.of(found))
