"""Class files of Java: their constants apart from code, line tables and texts."""
