"""Deflate streams (RFC 1951): opened to their content and to what is needed to close them to the same bytes again."""
