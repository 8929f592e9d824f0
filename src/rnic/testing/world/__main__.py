"""``python -m rnic.testing.world``."""

import sys

from rnic.testing.world.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
