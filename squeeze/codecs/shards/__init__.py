"""Many small files in few large ones: tars, each with an index of its members. write.py is the main path."""
