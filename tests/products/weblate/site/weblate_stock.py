"""What an installation writes into its settings: a copy of Weblate's example, and its own places in it."""

import os

from weblate.settings_example import *  # noqa: F403
from weblate.settings_example import CACHES, DATABASES

DATA_DIR = os.environ["WEBLATE_DATA"]
REDIS = os.environ["WEBLATE_REDIS"]

DEBUG = False
SITE_DOMAIN = "weblate.example"
SITE_URL = "http://weblate.example"
SECRET_KEY = "of-a-test-and-long-enough-for-what-weblate-asks-of-it"
OTP_WEBAUTHN_RP_ID = SITE_DOMAIN
OTP_WEBAUTHN_ALLOWED_ORIGINS = [f"https://{SITE_DOMAIN}"]
DATABASES["default"].update(
    NAME=os.environ["WEBLATE_DATABASE"],
    USER=os.environ["WEBLATE_USER"],
    PASSWORD="",
    HOST=os.environ["WEBLATE_HOST"],
    PORT=os.environ["WEBLATE_PORT"],
)
CACHE_DIR = f"{DATA_DIR}/cache"
MEDIA_ROOT = f"{DATA_DIR}/media"
STATIC_ROOT = f"{CACHE_DIR}/static"
CACHES["default"]["LOCATION"] = f"{REDIS}/1"
CACHES["avatar"]["LOCATION"] = f"{CACHE_DIR}/avatar"
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = f"{DATA_DIR}/mails"
CELERY_BROKER_URL = f"{REDIS}/0"
CELERY_RESULT_BACKEND = CELERY_BROKER_URL
# The other side of the repository is a daemon of git on this machine.
VCS_ALLOW_SCHEMES = {"https", "ssh", "git"}
VCS_RESTRICT_PRIVATE = False
ENABLE_AVATARS = False
WEBSITE_ALERTS_ENABLED = False
# Its own limit of mails is by time, and runs take as long as they take.
RATELIMIT_NOTIFICATION_LIMITS = [(1000, 3600)]
