"""Results of a synthetic figure: computation, files and drawing."""

import sys
from dataclasses import dataclass, replace
from types import ModuleType

import pytest

from fullrank.errors import UserError
from fullrank.report.plot_style import subplots, to_svg
from fullrank_papers.figures import Figure, Result, load_committed, reproduce, summarize_claims
from fullrank_papers.figures import figure as figure_module
from fullrank_papers.figures.figure import our_correction, paper_claim
from fullrank_papers.figures.result import round_numbers, save_drawing


@dataclass(frozen=True)
class Size:
    n: int


def compute(size, *, data, seed):
    return {"x": [seed / 3] * size.n, "data": data}


def plot(rows):
    figure, axes = subplots(1, 2)
    axes[0, 0].plot(rows["x"])
    return figure


def evaluate_claims(rows):
    x = rows["x"][0]
    return {
        "x is a third": paper_claim("0.333", f"{x:.3f}", abs(x - 1 / 3) < 1e-5),
        "x is a seventh": paper_claim("0.143", "0.333", False),
        "x is a ninth": paper_claim("0.111", "0.333", None),
        "x is seed / 3": our_correction("0.333", "0.333", True),
    }


SIZES = {"smoke": Size(2), "small": Size(3), "paper": Size(4)}
TOY = Figure(
    title="Fig. 0", claim="x is a third", sizes=SIZES, compute=compute, plot=plot, evaluate_claims=evaluate_claims
)


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    def add(name, figure):
        module = ModuleType(f"fullrank_papers.figures.toys.{name}")
        module.FIGURE = figure
        monkeypatch.setitem(sys.modules, module.__name__, module)

    monkeypatch.setattr(figure_module, "FIGURES", ("toys/one", "toys/images"))
    monkeypatch.setitem(sys.modules, "fullrank_papers.figures.toys", ModuleType("fullrank_papers.figures.toys"))
    add("one", TOY)
    add("images", replace(TOY, images="digits"))


def test_result_has_its_settings_and_environment():
    result = reproduce("toys/one", size="smoke", seed=1)
    assert (result.name, result.size, result.seed, result.settings) == ("toys/one", "smoke", 1, {"n": 2})
    assert result.rows == {"x": [0.333333, 0.333333], "data": None}
    assert {"torch", "scipy", "matplotlib", "hardware", "commit", "command"} <= set(result.environment)
    assert (
        summarize_claims(result.claims)
        == "claims: 1 of 3 borne out, 1 undecidable at this size; checks of the corrections: 1 of 1 borne out"
    )


def test_result_survives_writing_and_reading(tmp_path):
    result = reproduce("toys/one", size="smoke", seed=1)
    result.write(tmp_path / "a.json")
    again = Result.read(tmp_path / "a.json")
    assert again == result
    assert to_svg(again.draw()) == to_svg(result.draw())


def test_caption_has_every_claim_with_its_verdict(tmp_path):
    result = reproduce("toys/one", size="smoke", seed=1)
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "one-smoke.svg").touch()  # is replaced
    paths = save_drawing(result, tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        f"toys/one-smoke.{end}" for end in ("svg", "png")
    ]
    text = paths[0].read_text()
    assert "✓ Claim, borne out: x is a third" in text
    assert "✗ Claim, not borne out: x is a seventh" in text
    assert "? Claim, undecidable at this size: x is a ninth" in text
    assert "✓ Check of a correction, borne out: x is seed / 3" in text
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def test_invalid_arguments_raise():
    with pytest.raises(UserError, match="unknown figure 'toys/two'"):
        reproduce("toys/two")
    with pytest.raises(UserError, match="unknown size 'big'"):
        reproduce("toys/one", size="big")
    with pytest.raises(UserError, match="uses no images"):
        reproduce("toys/one", data="digits")
    with pytest.raises(UserError, match="seed -1 is negative"):
        reproduce("toys/one", seed=-1)
    assert reproduce("toys/images", size="smoke", data="digits").rows["data"] == "digits"


def test_invalid_or_missing_file_raises(tmp_path):
    (tmp_path / "a.json").write_text('{"name": "toys/one"}')
    with pytest.raises(UserError, match="does not contain the rows of a figure"):
        Result.read(tmp_path / "a.json")
    with pytest.raises(UserError, match="does not exist"):
        Result.read(tmp_path / "b.json")


def test_infinite_numbers_raise():
    with pytest.raises(AssertionError):
        round_numbers({"x": [float("nan")]})
    with pytest.raises(AssertionError):
        round_numbers([float("inf")])


def test_figure_without_committed_result():
    assert load_committed("toys/one") is None
