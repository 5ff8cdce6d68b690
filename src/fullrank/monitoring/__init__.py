"""Logging, spectrum evaluation, collapse detection, checkpoints and progress, between two training steps."""
