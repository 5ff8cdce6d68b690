"""`python -m fullrank.cli`, for launchers that want a module."""

import sys

from fullrank.cli.main import main

sys.exit(main())
