from django.contrib import admin

from shop.loyalty.models import Account, Award


class AwardInline(admin.TabularInline):
    model = Award
    extra = 0
    readonly_fields = ["event", "points"]


@admin.register(Account)
class AccountAdmin(admin.ModelAdmin):
    list_display = ["customer", "email", "points"]
    search_fields = ["customer", "email"]
    inlines = [AwardInline]
