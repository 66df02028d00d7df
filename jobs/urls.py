"""For those who watch, the pages that extensions have: ``path("jobs/", include("jobs.urls"))``."""

from jobs import extensions

app_name = "jobs"

urlpatterns = [each for module in extensions.modules("urls") for each in module.urlpatterns]
