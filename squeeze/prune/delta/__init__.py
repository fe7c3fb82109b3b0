"""Fine-tunes as lossy differences from their base: base.py finds and holds the base, method.py compresses a matrix."""
