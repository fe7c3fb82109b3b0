"""One benchmark a file, named as its entry: `rows(options)` checks the answer, measures, and yields a row at a time."""
