"""What several benchmarks use, and what they run in a process of its own."""
