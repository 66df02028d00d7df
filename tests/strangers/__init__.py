"""Packages of others on our task class: what their users rely on. Run by ``tests/test_strangers.py``."""
