"""The progress of a job, for a site's own pages."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from jobs.contrib.progress import public


@never_cache
@require_safe
def progress(request: HttpRequest, token: str) -> HttpResponse:
    """How far a job or a batch is, for whoever has the URL, which is signed; ``{% job_progress %}`` makes it.

    It tells the state, and what the body said by ``self.progress()``: neither arguments, nor result, nor error.
    """
    found = public.by_token(token)
    return JsonResponse({}, status=404) if found is None else JsonResponse(public.of(found))
