from django.contrib import admin
from django.urls import include, path

from shop import views

urlpatterns = [
    path("", views.sign_up_view, name="sign_up"),
    path("customer/<uuid:public_id>/", views.customer_view, name="customer"),
    path("customers/", views.hand_in_view, name="hand_in"),
    path("customers/<uuid:public_id>/", views.customer_file_view, name="customer_file"),
    path("admin/", admin.site.urls),
    path("jobs/", include("jobs.urls")),
]
