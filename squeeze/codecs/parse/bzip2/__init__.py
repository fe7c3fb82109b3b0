"""bzip2 streams: their content, and the same bytes again by an encoder of our own."""
