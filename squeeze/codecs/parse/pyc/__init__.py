"""Files of Python's byte code: their objects apart from instructions, line tables and texts."""
