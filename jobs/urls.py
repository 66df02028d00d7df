"""For those who watch: ``path("jobs/", include("jobs.urls"))``."""

from django.urls import path

from jobs import extensions, views

app_name = "jobs"

urlpatterns = [
    *(each for module in extensions.modules("urls") for each in module.urlpatterns),
    path("progress/<str:token>", views.progress, name="progress"),
]
