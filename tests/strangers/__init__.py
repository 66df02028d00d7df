"""Packages of others on our task class: what their users rely on. Run by ``tests/acceptance/test_strangers.py``."""
