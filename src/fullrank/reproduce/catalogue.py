"""Which figures there are, by name."""

import importlib

from fullrank.errors import pick
from fullrank.reproduce.figure import Figure

FIGURES = (
    "frossl/fig2",
    "frossl/fig3",
    "stepwise/steps",
    "dynamics/fig1",
    "dynamics/fig2",
    "dynamics/fig3",
    "dynamics/fig4",
    "dynamics/theorem3",
    "dynamics/remark1",
    "dynamics/remark3",
    "directclr/fig3",
    "directclr/fig5",
    "directclr/fig6",
    "directclr/fig11",
    "directclr/fig2",
    "directclr/table1",
    "directclr/table2",
    "directclr/fig10",
    "directclr/fig12",
)
"""PAPER/FIGURE, each a module of this package: frossl (Skean et al. 2024), stepwise (Simon et al. 2023), dynamics (Esser et al. 2023),
directclr (Jing et al. 2022)."""


def figure_named(name: str) -> Figure:
    """Return the figure PAPER/FIGURE.

    Raises:
        UserError: there is none of that name.

    >>> figure_named("frossl/fig2").title
    'Fig. 2 of Skean et al. 2024, FroSSL'
    """
    pick(name, dict.fromkeys(FIGURES), "figure")
    return importlib.import_module(f"fullrank.reproduce.{name.replace('/', '.')}").FIGURE
