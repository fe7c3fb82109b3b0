"""Building the libraries of machine code that a wheel for a platform has: see README.md."""
