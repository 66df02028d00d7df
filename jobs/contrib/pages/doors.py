"""The part of the pages in the core: Django's admin asks it for them."""

from jobs.doors import Extension


class Pages(Extension):
    instead = {"jobs.admin.register": "jobs.contrib.pages.admin.register"}
