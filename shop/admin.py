from django.contrib import admin

from shop.models import Customer, DailySummary, Import, Order


@admin.register(Customer)
class CustomerAdmin(admin.ModelAdmin):
    list_display = ["email", "name", "created_at", "is_welcome_email_sent"]
    list_filter = ["is_welcome_email_sent", "created_at"]
    search_fields = ["email", "name"]
    readonly_fields = ["public_id", "created_at", "is_welcome_email_sent", "welcome_job"]


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ["public_id", "customer", "cents", "created_at", "charge"]
    list_filter = ["created_at"]
    list_select_related = ["customer"]
    search_fields = ["public_id", "customer__email"]
    autocomplete_fields = ["customer"]
    readonly_fields = ["public_id", "created_at", "charge", "payment_job"]


@admin.register(Import)
class ImportAdmin(admin.ModelAdmin):
    list_display = ["source", "position"]
    search_fields = ["source"]
    readonly_fields = ["source", "position", "fence"]


@admin.register(DailySummary)
class DailySummaryAdmin(admin.ModelAdmin):
    list_display = ["day", "signups", "orders"]
    date_hierarchy = "day"
