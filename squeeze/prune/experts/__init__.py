"""Mixtures of experts with fewer experts."""
