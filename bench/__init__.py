"""Benchmarks: what each measures stands in registry.py, how in measures/, what came of it in results/."""
