"""Blocks of Snappy and LZ4, whose encoders look once for each match: their tokens are predicted and written again."""
