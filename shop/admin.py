from django.contrib import admin, messages
from django.utils.translation import gettext_lazy as _

from shop.models import Customer, CustomerFile, DailySummary, Import, Order, OrderNote
from shop.services import ask_for_data, fetch


@admin.register(Customer)
class CustomerAdmin(admin.ModelAdmin):
    list_display = ["email", "name", "created_at", "is_welcome_email_sent"]
    list_filter = ["is_welcome_email_sent", "created_at"]
    search_fields = ["email", "name"]
    readonly_fields = ["public_id", "created_at", "is_welcome_email_sent", "welcome_job"]
    actions = ["collect_data"]

    @admin.action(description=_("Collect their data"), permissions=["view"])
    def collect_data(self, request, customers):
        for customer in customers:
            messages.info(request, f"{customer}: {ask_for_data(customer)}")


class OrderNotes(admin.TabularInline):
    model = OrderNote
    readonly_fields = ["what", "created_at"]
    can_delete = False
    extra = max_num = 0


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ["public_id", "customer", "cents", "created_at", "charge"]
    list_filter = ["created_at"]
    list_select_related = ["customer"]
    search_fields = ["public_id", "customer__email"]
    autocomplete_fields = ["customer"]
    readonly_fields = ["public_id", "created_at", "charge", "payment_job"]
    inlines = [OrderNotes]
    actions = ["fetched"]

    @admin.action(description=_("They were fetched"), permissions=["change"])
    def fetched(self, request, orders):
        for order in orders:
            fetch(order)


@admin.register(Import)
class ImportAdmin(admin.ModelAdmin):
    list_display = ["source", "position"]
    search_fields = ["source"]
    readonly_fields = ["source", "position", "fence"]


@admin.register(CustomerFile)
class CustomerFileAdmin(admin.ModelAdmin):
    list_display = ["public_id", "created_at", "job"]
    readonly_fields = ["public_id", "created_at", "job"]


@admin.register(DailySummary)
class DailySummaryAdmin(admin.ModelAdmin):
    list_display = ["day", "signups", "orders"]
    date_hierarchy = "day"
