"""Parts that several benchmarks use, and programs that they run in processes of their own."""
