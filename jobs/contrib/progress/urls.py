"""The page that a bar asks, under ``jobs.urls``."""

from django.urls import path

from jobs.contrib.progress import views

urlpatterns = [path("progress/<str:token>", views.progress, name="progress")]
