"""`python -m gridless` is the command `gridless`."""

import sys

from gridless.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
