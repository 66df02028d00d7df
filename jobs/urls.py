"""Pages of extensions, for people who watch jobs: ``path("jobs/", include("jobs.urls"))``."""

from jobs import extensions

app_name = "jobs"

urlpatterns = [each for module in extensions.modules("urls") for each in module.urlpatterns]
