"""Work on many files by the workers of a Ray cluster. Read run.py first."""
