"""Advice: what the system checks say of settings that are allowed, and seldom meant."""
