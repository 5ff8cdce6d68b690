"""Run `python -m fullrank.cli`, for launchers that need a module."""

import sys

from fullrank.cli.main import main

sys.exit(main())
