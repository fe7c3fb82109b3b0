"""Benchmarks of squeeze: measure.py lists them, measures/ has one file each, and results/ has their records."""
