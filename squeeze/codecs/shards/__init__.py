"""Many small files in few large ones: tars with an index of their members. write.py is the way through."""
