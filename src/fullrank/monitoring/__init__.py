"""The work between two training steps: logging, spectrum evaluation, collapse detection, checkpoints, progress."""
