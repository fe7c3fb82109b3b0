"""`python -m squeeze`."""

from squeeze.cli import run

if __name__ == "__main__":  # worker processes import this module
    run()
