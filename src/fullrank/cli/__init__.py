"""The command line: verbs, typed flags, and errors of one line."""

from fullrank.cli.main import main

__all__ = ["main"]
