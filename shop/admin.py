from django.contrib import admin

from shop.models import Customer


@admin.register(Customer)
class CustomerAdmin(admin.ModelAdmin):
    list_display = ["email", "name", "created_at", "is_welcome_email_sent"]
    list_filter = ["is_welcome_email_sent", "created_at"]
    search_fields = ["email", "name"]
    readonly_fields = ["public_id", "created_at", "is_welcome_email_sent", "welcome_job"]
