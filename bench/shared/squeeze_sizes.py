"""Bytes that whichever squeeze this Python imports makes of the beginnings of files, for `newer` to compare.

Runs as a program, and prints a line of JSON first, which squeeze that is, then a number a line for each job of
standard input: a JSON list of lists of path, bytes from the start (null: all) and level. Every result is decoded.
"""

import json
import sys
from pathlib import Path

import squeeze


def main() -> None:
    print(json.dumps({"version": squeeze.__version__, "folder": str(Path(squeeze.__file__).parent)}), flush=True)
    for path, count, level in json.load(sys.stdin):
        data = Path(path).read_bytes()[:count]
        coded = squeeze.compress(data, level=level, verify=False)
        if squeeze.decompress(coded) != data:
            sys.exit(f"Error: level {level} changed the bytes of {path}")
        print(len(coded), flush=True)


if __name__ == "__main__":
    main()
