"""`fullrank reproduce`: the list of figures, one figure, and its files."""

import json
from dataclasses import asdict

import pytest

from fullrank.recipes import from_dict
from fullrank_papers import cli
from fullrank_papers.figures import FIGURES, load_committed, load_figure, summarize_claims


def test_without_a_name_it_lists_every_figure_with_verdict_and_time(fullrank):
    status, out, _ = fullrank("reproduce")
    assert status == 0
    words = " ".join(out.split())
    for name in FIGURES:
        assert name in out
        if (result := load_committed(name)) is None:
            assert "not computed yet" in words
            continue
        assert f"{result.seconds:.0f} s" in words
        assert result.claims
    assert "checks of the corrections are about our own statements" in words


def with_new_fields(settings):
    """Return settings in which a stored recipe has the fields that were added later, at their defaults."""
    nested = {"comparison": with_new_fields(settings["comparison"])} if "comparison" in settings else {}
    return settings | nested | ({"recipe": from_dict(settings["recipe"])} if "recipe" in settings else {})


def test_every_committed_result_matches_its_figure_and_draws():
    for name, size in [(figure, size) for figure in FIGURES for size in load_figure(figure).sizes]:
        if (result := load_committed(name, size)) is None:
            continue
        figure = load_figure(name)
        assert (result.name, result.size) == (name, size)
        expected = json.loads(json.dumps(asdict(figure.sizes[size])))
        assert with_new_fields(result.settings) == with_new_fields(expected), f"{name} was computed with other settings"
        assert "claims" in summarize_claims(result.claims), f"{name} tests no claim of its paper"
        assert result.environment["commit"]
        assert result.draw().axes


def test_figure_is_computed_drawn_and_redrawn(fullrank, tmp_path):
    name = "dynamics/theorem3"
    status, out, err = fullrank("reproduce", name, "--size", "smoke", "--out", tmp_path)
    assert status == 0
    path = tmp_path / f"{name}-smoke.json"
    claims = load_figure(name).claims(json.loads(path.read_text())["rows"])
    assert summarize_claims(claims) in out
    assert str(path) in err
    assert fullrank("reproduce", name, "--size", "smoke", "--out", tmp_path)[0] == 2  # needs --overwrite
    rows = json.loads(path.read_text()) | {"seed": 7}
    path.write_text(json.dumps(rows))
    assert fullrank("reproduce", name, "--size", "smoke", "--out", tmp_path, "--redraw")[0] == 0
    assert json.loads(path.read_text())["seed"] == 7


def test_unknown_figure_is_an_error(fullrank):
    status, _, err = fullrank("reproduce", "frossl/fig99")
    assert status == 2
    assert "unknown figure 'frossl/fig99'" in err
    assert "frossl/fig2" in err


@pytest.mark.parametrize("name", ["dynamics/theorem3", "dynamics"])
def test_data_for_figures_without_images_is_an_error(fullrank, tmp_path, monkeypatch, name):
    monkeypatch.setattr(cli, "FIGURES", ("dynamics/theorem3", "dynamics/fig1"))
    status, _, err = fullrank("reproduce", name, "--data", "digits", "--out", tmp_path)
    assert status == 2
    assert f"{name} uses no images" in err
    assert not list(tmp_path.iterdir())


def test_repeated_command_keeps_existing_results(fullrank, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "FIGURES", ("dynamics/theorem3", "dynamics/fig1"))
    assert fullrank("reproduce", "dynamics/theorem3", "--size", "smoke", "--seed", "3", "--out", tmp_path)[0] == 0
    (tmp_path / "dynamics" / "theorem3-smoke.svg").unlink()
    status, _, err = fullrank("reproduce", "dynamics", "--size", "smoke", "--out", tmp_path)
    assert status == 0
    assert "computed with seed 3" in err
    assert len(list(tmp_path.rglob("*.svg"))) == 2
    assert json.loads((tmp_path / "dynamics" / "theorem3-smoke.json").read_text())["seed"] == 3


def test_unwritable_folder_is_an_error_before_computing(fullrank, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "compute", None)  # calling it would be a TypeError
    (tmp_path / "dynamics").touch()
    status, _, err = fullrank("reproduce", "dynamics/fig1", "--size", "smoke", "--out", tmp_path)
    assert status == 2
    assert "cannot write" in err
