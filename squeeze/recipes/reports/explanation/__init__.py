"""Explanations of compressed files: the bits of each byte or token, as arrays, JSON and an HTML page."""
