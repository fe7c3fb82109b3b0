"""Weights as paths through a trellis, whose levels overlap: the method, what it makes, and how that is stored."""
