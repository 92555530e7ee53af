"""`python -m coordinator.cli`."""

import sys

from coordinator.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
