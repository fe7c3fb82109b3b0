"""Documents made by programs: logs, tables, records and mail, deterministic from a seed."""
