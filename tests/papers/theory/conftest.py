"""Fixtures of the tests of all theories; `dynamics_helpers` has their plain functions."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
