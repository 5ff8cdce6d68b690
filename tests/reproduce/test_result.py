"""A figure from its rows to its files, with one made up for the purpose."""

import sys
from dataclasses import dataclass, replace
from types import ModuleType

import pytest

from fullrank.errors import UserError
from fullrank.reproduce import Claim, Figure, Result, catalogue, reproduce, verdict
from fullrank.reproduce.draw import subplots, svg
from fullrank.reproduce.result import committed, draw, rounded


@dataclass(frozen=True)
class Size:
    n: int


def compute(size, *, data, seed):
    return {"x": [seed / 3] * size.n, "data": data}


def plot(rows):
    figure, axes = subplots(1, 2)
    axes[0, 0].plot(rows["x"])
    return figure


def claims(rows):
    return [
        Claim("x is a third", expected="0.333", measured=f"{rows['x'][0]:.3f}", holds=abs(rows["x"][0] - 1 / 3) < 1e-5),
        Claim("x is a seventh", expected="0.143", measured="0.333", holds=False),
        Claim("x is seed / 3", expected="0.333", measured="0.333", holds=True, corrected=True),
    ]


SIZES = {"smoke": Size(2), "small": Size(3), "paper": Size(4)}
TOY = Figure(title="Fig. 0", claim="x is a third", sizes=SIZES, compute=compute, plot=plot, claims=claims)


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    def add(name, figure):
        module = ModuleType(f"fullrank.reproduce.toys.{name}")
        module.FIGURE = figure
        monkeypatch.setitem(sys.modules, module.__name__, module)

    monkeypatch.setattr(catalogue, "FIGURES", ("toys/one", "toys/seen"))
    monkeypatch.setitem(sys.modules, "fullrank.reproduce.toys", ModuleType("fullrank.reproduce.toys"))
    add("one", TOY)
    add("seen", replace(TOY, images="digits"))


def test_a_result_says_what_it_is_and_where_it_comes_from():
    result = reproduce("toys/one", size="smoke", seed=1)
    assert (result.name, result.size, result.seed, result.settings) == ("toys/one", "smoke", 1, {"n": 2})
    assert result.rows == {"x": [0.333333, 0.333333], "data": None}
    assert {"torch", "scipy", "matplotlib", "hardware", "commit", "command"} <= set(result.environment)
    assert verdict(result.claims) == "1 of 2 claimed, 1 of 1 corrected"


def test_files_hold_all_that_the_drawing_needs(tmp_path):
    result = reproduce("toys/one", size="smoke", seed=1)
    result.write(tmp_path / "a.json")
    again = Result.read(tmp_path / "a.json")
    assert again == result
    assert svg(again.draw()) == svg(result.draw())


def test_the_drawing_carries_every_claim_with_its_verdict(tmp_path):
    result = reproduce("toys/one", size="smoke", seed=1)
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "one-smoke.svg").touch()  # follows from the rows, so it is replaced
    paths = draw(result, tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [f"toys/one-smoke.{end}" for end in ("svg", "png")]
    text = paths[0].read_text()
    assert "✓ Claimed: x is a third" in text
    assert "✗ Claimed: x is a seventh" in text
    assert "✓ Corrected: x is seed / 3" in text
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def test_names_sizes_and_data_that_do_not_fit_are_said_so():
    with pytest.raises(UserError, match="unknown figure 'toys/two'"):
        reproduce("toys/two")
    with pytest.raises(UserError, match="unknown size 'big'"):
        reproduce("toys/one", size="big")
    with pytest.raises(UserError, match="uses no images"):
        reproduce("toys/one", data="digits")
    with pytest.raises(UserError, match="seed -1 is negative"):
        reproduce("toys/one", seed=-1)
    assert reproduce("toys/seen", size="smoke", data="digits").rows["data"] == "digits"


def test_a_file_that_is_no_result_is_said_so(tmp_path):
    (tmp_path / "a.json").write_text('{"name": "toys/one"}')
    with pytest.raises(UserError, match="does not hold the rows of a figure"):
        Result.read(tmp_path / "a.json")
    with pytest.raises(UserError, match="not there yet"):
        Result.read(tmp_path / "b.json")


def test_rows_that_json_cannot_hold_are_refused():
    with pytest.raises(AssertionError):
        rounded({"x": [float("nan")]})
    with pytest.raises(AssertionError):
        rounded([float("inf")])


def test_a_figure_that_was_not_computed_has_no_committed_result():
    assert committed("toys/one") is None
