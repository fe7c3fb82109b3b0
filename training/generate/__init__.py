"""Generators of documents, deterministic by seed: logs, tables, records and mail."""
