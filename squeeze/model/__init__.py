"""The checkpoint spine that quantisation, pruning and factorisation share."""
