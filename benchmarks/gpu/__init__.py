"""Everything that a GPU has to show, in parts that can be stopped and continued: `python -m benchmarks.gpu --help`."""
