"""A second service, with settings, a database and a worker of its own: it gives points to the shop's customers.

It knows the shop only by its events, and imports nothing of it but the settings that both share::

    export DJANGO_SETTINGS_MODULE=shop.loyalty.settings
    python manage.py migrate && celery -A shop.loyalty worker
"""
