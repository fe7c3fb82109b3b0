"""Cumulative frequencies of leaves after the head's product. reference.py defines it."""
