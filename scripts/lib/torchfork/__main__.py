"""python -m torchfork, and the console command."""

import sys

from .cli import main


def run() -> int:
    """What the console command calls."""
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
