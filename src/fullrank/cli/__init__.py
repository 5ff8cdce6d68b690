"""The command line: commands, typed flags, and one-line errors."""

from fullrank.cli.main import main

__all__ = ["main"]
