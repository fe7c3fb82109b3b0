"""The commands; cli.py has the table of where each one is.

A command parses its options, makes one library call and prints the result. Modules that need numpy or torch are
imported inside functions, so `--help` needs neither.
"""
