"""Folders in one .sqz file: a tar with an index of its members. write.py makes one, and extract.py restores it."""
