"""The comparison of losses at tiny sizes, without lightly."""

import json

import pytest
import torch

from fullrank.objectives import OBJECTIVES


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the script and return its JSON."""

    def run(*flags):
        import losses

        path = tmp_path / "losses.json"
        monkeypatch.setattr("sys.argv", ["losses.py", "--threads", "1", "--out", str(path), *flags])
        losses.main()
        return json.loads(path.read_text())

    return run


@pytest.mark.parametrize(("N", "D"), [(24, 8), (8, 24)])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_formula_equals_the_objective(name, N, D):
    import contenders
    import losses

    if name in losses.LARGEST_D and N <= D:
        pytest.skip("decomposes a covariance, which needs N > D")
    contenders.agreement(name, N=N, D=D)


def test_another_formula_is_an_error(monkeypatch):
    import contenders
    import formulas

    monkeypatch.setattr(formulas, "vicreg", lambda Z, **_: Z.square().mean())
    with pytest.raises(AssertionError, match="vicreg: formula and library differ"):
        contenders.agreement("vicreg")


def test_times_have_every_cell(run, capsys):
    names, sizes = ["simclr", "moco", "ivne", "wmse"], [(16, 4), (12, 6)]
    options = "--objectives", *names, "--sizes", *(f"{N}x{D}" for N, D in sizes), "--rounds", "3"
    section = run(*options)["times"]
    assert {(row["objective"], row["N"], row["D"]) for row in section["rows"]} == {
        (name, N, D) for name in names for N, D in sizes
    }
    for row in section["rows"]:
        assert set(row["milliseconds"]) == {"products", "fullrank", "formula"}
        assert all(0 < low <= median <= high for median, low, high in row["milliseconds"].values())
        assert row["over formula"] == pytest.approx(
            row["milliseconds"]["fullrank"][0] / row["milliseconds"]["formula"][0], abs=0.02, rel=0.02
        )
        assert row["over lightly"] is None
    assert section["environment"]["versions"]["torch"] == torch.__version__.split("+")[0]
    assert "lightly is not installed" in capsys.readouterr().out


def test_sections_do_not_replace_each_other(run):
    cell = "--objectives", "barlow_twins", "--sizes", "16x8"
    run(*cell, "--rounds", "3")
    found = run(*cell, "--memory")
    assert set(found) == {"times", "memory"}
    assert found["memory"]["rows"][0]["peak"]["fullrank"] > 1  # at least the gradient


def test_words_name_the_cells_in_which_another_is_ahead():
    import losses

    row = {"objective": "frossl", "N": 8, "D": 4, "over formula": 1.5, "over lightly": None, "behind": ["formula"]}
    ahead = row | {"N": 16, "over formula": 0.5, "behind": []}
    assert losses.in_words([row, ahead]) == [
        "formula is ahead in 1 of 2 cells:",
        "  frossl: 1.50 at 8 × 4",
        "lightly is ahead in 0 of 0 cells.",
    ]
