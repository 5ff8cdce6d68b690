"""Measurements of the library; benchmarks/README.md lists them."""
