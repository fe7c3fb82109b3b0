"""The commands, one file each, named as the command; cli.py has the table.

A command parses, makes one library call and prints. What needs numpy or torch is imported inside its function, here and
in what the commands share, so that `--help` needs neither.
"""
