"""Pages of what commands report: what it cost, layer by layer, and how runs compare."""
