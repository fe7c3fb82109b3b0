"""Where the bits of a file go: what each byte or token cost, as arrays, as JSON, and as a page."""
