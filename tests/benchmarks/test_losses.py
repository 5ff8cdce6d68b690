"""The comparison of losses at tiny sizes."""

import json

import pytest
import torch

from benchmarks import contenders, formulas, losses
from fullrank.objectives import OBJECTIVES


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the script, as if lightly was not installed, and return its JSON."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(contenders, "counterpart", None)

    def run(*flags):
        path = tmp_path / "losses.json"
        monkeypatch.setattr("sys.argv", ["losses.py", "--threads", "1", "--out", str(path), *flags])
        losses.main()
        return json.loads(path.read_text())

    yield run
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("N", "D"), [(24, 8), (8, 24)])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_formula_equals_the_objective(name, N, D):
    if name in contenders.LARGEST_D and N <= D:
        pytest.skip("decomposes a covariance, which needs N > D")
    contenders.agreement(name, N=N, D=D)


def test_another_formula_is_an_error(monkeypatch):
    monkeypatch.setattr(formulas, "vicreg", lambda Z, **_: Z.square().mean())
    with pytest.raises(AssertionError, match="vicreg: formula differs"):
        contenders.agreement("vicreg")


def test_times_and_memory_have_every_cell_and_do_not_replace_each_other(run, capsys):
    names, sizes = ["simclr", "moco", "ivne", "wmse"], [(16, 4), (12, 6)]
    cells = "--objectives", *names, "--sizes", *(f"{N}x{D}" for N, D in sizes)
    run(*cells, "--rounds", "3")
    found = run(*cells, "--memory")
    for section in found.values():
        measured = {(row["objective"], row["N"], row["D"]) for row in section["rows"]}
        assert measured == {(name, N, D) for name in names for N, D in sizes}
    for row in found["times"]["rows"]:
        assert set(row["milliseconds"]) - {"own formula"} == {"products", "fullrank", "formula"}
        assert all(0 < low <= median <= high for median, low, high in row["milliseconds"].values())
        assert row["over lightly"] is None
    assert all(row["peak"]["fullrank"] > 1 for row in found["memory"]["rows"])  # at least the gradient
    assert "lightly is not installed" in capsys.readouterr().out


def test_the_peak_of_memory_counts_no_freed_tensors():
    def three_times(x):
        y = x + 1  # two tensors beyond x are alive at once
        y = y + 1
        y = y + 1
        return y.sum()

    assert losses.peak_bytes(lambda: three_times(torch.ones(1000)), "cpu") == pytest.approx(3 * 4000, abs=200)
