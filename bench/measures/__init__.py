"""One benchmark per file: `rows(options)` checks the results, measures, and yields one row at a time."""
