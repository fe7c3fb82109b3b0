"""Packed checkpoints by the workers of a cluster. Read run.py first."""
