"""Settings that are the same for every peer, and those of the peer itself."""

from __future__ import annotations

import os

import dj_database_url

from benchmarks.peers import PEERS

PEER = PEERS[os.environ["BENCH_PEER"]]

SECRET_KEY = "only for the benchmarks"
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "benchmarks.project"]
DATABASES = {"default": dj_database_url.parse(os.environ["BENCH_DATABASE_URL"], conn_max_age=600)}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
    }
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
}

_peer_settings = PEER.settings()
INSTALLED_APPS += _peer_settings.pop("INSTALLED_APPS", [])
globals().update(_peer_settings)
