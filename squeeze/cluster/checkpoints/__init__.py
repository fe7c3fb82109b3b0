"""Packed checkpoints by the workers of a cluster: run.py is the way through, read it first."""
