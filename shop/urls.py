from django.contrib import admin
from django.urls import include, path

from shop import views

urlpatterns = [
    path("", views.sign_up_view, name="sign_up"),
    path("customer/<uuid:public_id>/", views.customer_view, name="customer"),
    path("admin/", admin.site.urls),
    path("jobs/", include("jobs.urls")),
]
