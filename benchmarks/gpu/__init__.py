"""Everything that a GPU has to show, in parts that can be stopped and continued: `python -m benchmarks.gpu --help`."""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))  # the other benchmarks are scripts, which import each other by their bare names
