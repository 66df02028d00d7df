"""For those who watch: ``path("jobs/", include("jobs.urls"))``."""

from django.urls import path

from jobs import views

app_name = "jobs"

urlpatterns = [
    path("health", views.health, name="health"),
    path("metrics", views.metrics, name="metrics"),
    path("progress/<str:token>", views.progress, name="progress"),
]
