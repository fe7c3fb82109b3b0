"""What a lane of a language model sees of its past, besides the window of the latest positions."""

SINK = 16  # the first positions, which are always seen
