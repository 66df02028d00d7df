"""What the core shows on pages."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("jobs/", include("jobs.urls"))]
