"""Adapters to other libraries. Import the one you need: each imports its library."""
