"""Adapters to other libraries; each is imported by those who want it."""
