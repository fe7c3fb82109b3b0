"""The corpus that the small language model is trained on: its sources, and how they become one file of documents."""
