"""The pages for machines, under ``jobs.urls``."""

from django.urls import path

from jobs.contrib.operator import views

urlpatterns = [path("health", views.health, name="health"), path("metrics", views.metrics, name="metrics")]
