"""Lossless coding of tensors: entropy coding of floats, codes of fixed length, an archive coding, and differences."""
