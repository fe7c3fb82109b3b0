"""The corpus of the small language model, the programs that train models on it, and their export into the package."""
