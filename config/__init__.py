"""Wires the parts together: settings, Celery, URLs, and the private local stack."""
