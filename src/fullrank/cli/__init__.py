"""The command line: verbs, typed flags, and one clear line for what the user can mend."""

from fullrank.cli.main import main

__all__ = ["main"]
