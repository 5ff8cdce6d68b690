"""`fullrank reproduce`: the list, one figure, and its files."""

import json

from fullrank.reproduce import FIGURES, committed, figure_named, verdict


def test_alone_it_lists_every_figure_with_claim_verdict_and_time(fullrank):
    status, out, _ = fullrank("reproduce")
    assert status == 0
    words = " ".join(out.split())
    for name in FIGURES:
        result = committed(name)
        assert name in out
        assert f"{result.seconds:.0f} s" in words
        assert result.claims
    assert "claimed: by the paper" in out


def test_every_committed_result_is_that_of_its_figure_and_draws():
    for name in FIGURES:
        result, figure = committed(name), figure_named(name)
        assert (result.name, result.size) == (name, "small")
        assert result.settings.keys() == {f.name for f in figure.sizes["small"].__dataclass_fields__.values()}
        assert "claimed" in verdict(result.claims), f"{name} tests no claim of its paper"
        assert result.environment["commit"]
        assert result.draw().axes


def test_a_figure_is_computed_drawn_and_drawn_again(fullrank, tmp_path):
    name = "dynamics/theorem3"
    status, out, err = fullrank("reproduce", name, "--size", "smoke", "--out", tmp_path)
    assert status == 0
    path = tmp_path / f"{name}-smoke.json"
    claims = figure_named(name).claims(json.loads(path.read_text())["rows"])
    assert verdict(claims) in out
    assert str(path) in err
    assert fullrank("reproduce", name, "--size", "smoke", "--out", tmp_path)[0] == 2  # not unasked
    rows = json.loads(path.read_text()) | {"seed": 7}
    path.write_text(json.dumps(rows))
    assert fullrank("reproduce", name, "--size", "smoke", "--out", tmp_path, "--redraw")[0] == 0
    assert json.loads(path.read_text())["seed"] == 7


def test_a_figure_that_is_not_there_is_said_so(fullrank):
    status, _, err = fullrank("reproduce", "frossl/fig99")
    assert status == 2
    assert "unknown figure 'frossl/fig99'" in err
    assert "frossl/fig2" in err


def test_data_for_a_figure_without_images_is_said_so(fullrank, tmp_path):
    status, _, err = fullrank("reproduce", "dynamics/theorem3", "--data", "digits", "--out", tmp_path)
    assert status == 2
    assert "uses no images" in err
    assert not list(tmp_path.iterdir())
