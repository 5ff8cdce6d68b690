"""How the operations of every objective grow with the batch size N and the dimensions D, for the table of
docs/objectives.md.

    python benchmarks/growth.py

Multiplications of matrix products and decompositions, and the numbers that all other operations write, of loss and
gradient for two views. They are counted from shapes on torch's device "meta", so that the sizes are large and the
result is exact on any machine.
"""

from pathlib import Path

from fullrank.objectives import OBJECTIVES
from fullrank.run import write_json
from fullrank.testing import objective_case
from fullrank.testing.cost import LARGE, SMALL, counted_exponents

OUT = Path(__file__).parent / "results" / "growth.json"


def case_of(name, D):
    """Return the test case; DirectCLR uses all dimensions, and W-MSE has a regular covariance for any N."""
    hyper = {"directclr": {"d0": D}, "directclr_paper": {"d0": D}, "wmse": {"epsilon": 0.01}}.get(name)
    return objective_case(OBJECTIVES[name], hyper=hyper)


def main():
    rows = {}
    for name in OBJECTIVES:
        rows[name] = [round(exponent, 1) for exponent in counted_exponents(lambda D, name=name: case_of(name, D))]
        print(f"{name:22} N^{rows[name][0]}  D^{rows[name][1]}", flush=True)
    write_json(OUT, {"small": SMALL, "large": list(LARGE), "views": 2, "exponents of N and D": rows})


if __name__ == "__main__":
    main()
