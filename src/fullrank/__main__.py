"""`python -m fullrank` is the command `fullrank`."""

import sys

from fullrank.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
