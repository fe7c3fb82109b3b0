"""How many processor cores there are to use."""

import os
import sys


def available() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
