"""Work on many files by the workers of a Ray cluster: run.py is the way through, read it first."""
