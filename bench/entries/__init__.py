"""Benchmarks by what they measure: what each needs, its options, and the tables that docs show of it. No torch here."""
