"""A caller of a sweep in a process of its own."""

from rich.console import Console

from fullrank.sweep import run_sweep


def call(cells, folder, connection):
    rows = run_sweep(lambda rows: cells, folder, console=Console(quiet=True))
    connection.send([(row.cell, row.status, row.error) for row in rows])
