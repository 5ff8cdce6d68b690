from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.monitoring import collapse_detector as module
from fullrank.monitoring.collapse_detector import (
    AGREEMENT,
    DIRECTIONS,
    EXPLODED,
    FALLEN,
    MISSING,
    RESOLVED,
    SPREAD,
    CollapseDetector,
    collapse,
    missing_share,
    outweighing,
    replay,
)
from fullrank.run.rows import SpectrumMetrics
from fullrank.spectrum import Spectrum

SETTLED = 20
TERMS = {"variance": 20.0, "invariance": 5.0}


def place(**numbers):
    return {"effective_rank": 30.0, "collapsed_dimensions": 0, "dimensions": 128, "samples": 1280, "relative_variance": 0.3} | numbers


def look(step=SETTLED, *, backbone=None, projector=None, **numbers):
    places = {"backbone": place(**(backbone or {})), "projector": place(dimensions=512, **(projector or {}))}
    return {"step": step, "epoch": step / 10, "kind": "spectrum", "intraclass_correlation": 0.8} | places | numbers


def train(step=1, **terms):
    terms = terms or TERMS
    return {"step": step, "epoch": step / 10, "kind": "train", "loss": sum(terms.values()), "terms": terms}


def raised(*rows, **recipe):
    return [alarm for _, alarm in replay(rows, burn_in_end=SETTLED, recipe=recipe)]


def kinds(*rows):
    return [(alarm.kind, alarm.where) for alarm in raised(*rows)]


def test_health_raises_nothing():
    assert kinds(train(), look(0), look(10), look(20), train(21), look(30)) == []


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (look(backbone={"relative_variance": SPREAD}), []),
        (look(backbone={"relative_variance": 0.99 * SPREAD}), [("complete collapse", "backbone")]),
        (look(projector={"relative_variance": 0.0, "effective_rank": 0.0}), [("complete collapse", "projector")]),
        (look(projector={"effective_rank": DIRECTIONS}), []),
        (look(projector={"effective_rank": 0.99 * DIRECTIONS}), [("dimensional collapse", "projector")]),
        (look(backbone={"effective_rank": 0.99 * DIRECTIONS}), [("dimensional collapse", "backbone")]),
        (look(backbone={"collapsed_dimensions": int(MISSING * 128)}), []),
        (look(backbone={"collapsed_dimensions": int(MISSING * 128) + 1}), [("dimensional collapse", "backbone")]),
        (look(projector={"collapsed_dimensions": 400}), []),  # contrastive projectors have them in health
        (look(intraclass_correlation=AGREEMENT), []),
        (look(intraclass_correlation=0.99 * AGREEMENT), [("views disagree", "backbone")]),
        (look(intraclass_correlation=-0.01), [("views disagree", "backbone")]),
    ],
)
def test_a_look_is_judged_by_each_threshold(row, expected):
    assert kinds(train(), row) == expected


def test_spectra_are_judged_only_when_they_have_settled():
    sick = {"backbone": {"relative_variance": 0.0}, "projector": {"effective_rank": 1.0}, "intraclass_correlation": 0.0}
    assert kinds(train(), *(look(step, **sick) for step in range(SETTLED))) == []
    assert len(kinds(train(), look(SETTLED, **sick))) == 3


@pytest.mark.parametrize("where", ["backbone", "projector"])
def test_a_rank_that_falls_to_less_than_half_of_what_it_was_is_a_collapse(where):
    ranks = [40.0, 100.0, 100.0 * FALLEN, 100.0 * FALLEN - 1]
    looks = [look(step, **{where: {"effective_rank": rank}}) for step, rank in zip(range(20, 60, 10), ranks, strict=True)]
    assert kinds(*looks[:-1]) == []
    (alarm,) = raised(*looks)
    assert (alarm.kind, alarm.where) == ("dimensional collapse", where)
    assert alarm.found.startswith("effective rank 49.000 of ")
    assert alarm.expected == f"{FALLEN:.0%} of the 100.000 it had, or more"


def test_a_rank_of_next_to_no_dimensions_does_not_fall():
    ranks = {"dimensions": RESOLVED - 1, "samples": 100}
    assert kinds(*(look(step, backbone=ranks | {"effective_rank": rank}) for step, rank in ((20, 3.0), (30, 1.0)))) == []


def test_a_fall_before_spectra_settle_is_none():
    assert kinds(look(10, backbone={"effective_rank": 100.0}), look(20), look(30)) == []


def test_each_kind_is_raised_once_a_place():
    line = {"effective_rank": 1.1}
    rows = [train(), look(20, projector=line), look(30, backbone=line, projector=line), look(40, backbone=line, projector=line)]
    found = replay(rows, burn_in_end=SETTLED)
    assert [(step, alarm.where) for step, alarm in found] == [(20, "projector"), (30, "backbone")]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(1, 5), st.floats(0, 0.4), st.floats(0, 2e-3)), max_size=8), st.integers(0, 8))
def test_what_was_raised_by_a_step_does_not_depend_on_what_follows(numbers, cut):
    rows = [
        look(5 * i, backbone={"effective_rank": rank, "relative_variance": spread}, intraclass_correlation=shared)
        for i, (rank, shared, spread) in enumerate(numbers)
    ]
    whole = replay(rows, burn_in_end=SETTLED)
    assert replay(rows[:cut], burn_in_end=SETTLED) == [(step, alarm) for step, alarm in whole if step < 5 * cut]
    resumed = CollapseDetector(SETTLED)
    for row in rows[:cut]:
        resumed.see(row)
    assert [(row["step"], alarm) for row in rows[cut:] for alarm in resumed.see(row)] == [found for found in whole if found[0] >= 5 * cut]


def same(step, **numbers):
    return look(step) | {"backbone": place(**numbers), "projector": place(**numbers)}


def test_without_a_projector_there_is_one_place():
    assert kinds(train(), same(0), same(20, effective_rank=1.1)) == [("dimensional collapse", "backbone")]


def test_two_places_that_collapse_to_the_same_are_two_places():
    gone = {"relative_variance": 0.0, "effective_rank": 0.0}
    found = raised(train(), look(0), same(20, **gone))
    assert [(alarm.kind, alarm.where) for alarm in found] == [("complete collapse", "backbone"), ("complete collapse", "projector")]
    assert "projector" not in found[0].cause


def test_a_projector_that_begins_as_the_identity_is_a_projector():
    assert kinds(train(), same(0), look(20, projector={"effective_rank": 1.1})) == [("dimensional collapse", "projector")]


def test_a_log_without_spread_or_agreement_is_judged_by_what_it_has():
    row = look(projector={"effective_rank": 1.1})
    for name in ("backbone", "projector"):
        del row[name]["relative_variance"]
    del row["intraclass_correlation"]
    assert kinds(row) == [("dimensional collapse", "projector")]
    row["backbone"]["relative_variance"] = None  # of a spectrum whose mean is not known
    assert kinds(row) == [("dimensional collapse", "projector")]


@pytest.mark.parametrize(
    ("start", "loss", "expected"),
    [
        (TERMS, EXPLODED * 25, False),
        (TERMS, EXPLODED * 25 + 1, True),
        (TERMS, -1e6, False),  # a loss may fall as far as it likes
        ({"prediction": 0.01}, 0.9, False),  # beginning near zero is no reason to cry at 0.9
        ({"alignment": -12.0, "uniformity": 12.0}, 200.0, False),  # their sum is near zero, they are not
    ],
)
def test_a_loss_diverges_when_it_outgrows_its_terms_at_the_first_step(start, loss, expected):
    assert (kinds(train(**start), train(2, loss=loss)) == [("divergence", "loss")]) is expected


def test_divergence_does_not_wait():
    ((step, alarm),) = replay([train(), train(3, loss=1e6), train(4, loss=1e7)], burn_in_end=SETTLED, recipe={"optimizer": {"lr": 0.5}})
    assert (step, alarm.kind) == (3, "divergence")
    assert alarm.message == ("divergence, loss: 1e+06, expected at most 250 after it began at 25; probably steps that are too large")
    assert alarm.remedy == "lower --optimizer.lr (now 0.5), or lengthen --schedule.warmup"


LINE = look(projector={"effective_rank": 1.1})
STRANGERS = look(intraclass_correlation=0.05)
BARE = look() | {"backbone": place(), "projector": place()}
BARE_LINE = look() | dict.fromkeys(("backbone", "projector"), place(effective_rank=1.1))
INVARIANCE = {"invariance": 5.0, "variance": 0.0, "covariance": 0.0}
OFF = {"invariance": 25.0, "variance": 0.0, "covariance": 0.0}
VICREG = {"hyper": {"invariance": 25.0, "variance": 25.0, "covariance": 1.0}, "optimizer": {"lr": 0.5}}
FROSSL = {"hyper": {"invariance": 1.0, "log": False, "center": True}}
BYOL = {"method": {"predictor": 512, "momentum": [0.9, 1.0]}}
SIMSIAM = {"method": {"predictor": 512, "momentum": None}}


@pytest.mark.parametrize(
    ("terms", "row", "recipe", "cause", "remedy"),
    [
        (INVARIANCE, LINE, {"hyper": OFF}, "without its 'variance' and 'covariance'", "raise --hyper.variance and --hyper.covariance"),
        (INVARIANCE, LINE, {}, "a loss without its 'variance'", "weigh the terms anew"),
        ({"invariance": 5.0, "variance": 0.0}, LINE, VICREG, "steps that are too large", "(now 0.5)"),  # its hinge rests
        (
            {"invariance": 5.0, "relative_variance": 0.0},
            LINE,
            {"hyper": {"a": 0.0, "b": 1.0}},
            "without its 'relative_variance'",
            "anew (--hyper.a, --hyper.b)",
        ),
        ({"variance": 18.0, "invariance": 7e4}, LINE, VICREG, "'invariance', 3,889 times", "lower --hyper.invariance"),
        ({"variance": 1.7e4, "invariance": 7.0}, STRANGERS, FROSSL, "the term 'variance', 2,429 times", "its logarithm (--hyper.log)"),
        ({"variance": 1.7e4, "invariance": 7.0}, STRANGERS, {}, "the term 'variance', 2,429 times", "weigh the terms anew"),
        (TERMS, STRANGERS, {}, "augmentation", "--views.0.crop.scale"),
        (TERMS, LINE, {"optimizer": {"lr": 0.5}}, "steps that are too large", "(now 0.5)"),
        ({"prediction": 4.0}, LINE, BYOL, "a target network that follows too fast", "raise --method.momentum (now 0.9 1)"),
        ({"prediction": 0.1}, LINE, SIMSIAM, "steps that are too large", "lower --optimizer.lr, or lengthen --schedule.warmup"),
        (TERMS, BARE | {"intraclass_correlation": 0.1}, {}, "for want of a projector", "--projector.widths"),
        (TERMS, BARE_LINE, {}, "steps that are too large, or the want of a projector", "lengthen --schedule.warmup, or add one"),
        ({"one": 1.0}, LINE, {}, "steps that are too large", "--optimizer.lr"),
    ],
)
def test_the_cause_is_read_from_the_terms_of_the_first_step(terms, row, recipe, cause, remedy):
    (alarm,) = raised(train(**terms), train(2, other=1.0), row, **recipe)
    assert cause in alarm.cause
    assert remedy in alarm.remedy


def test_views_that_disagree_after_a_divergence_are_laid_to_the_steps():
    divergence, alarm = raised(train(), train(2, loss=1e6), STRANGERS)
    assert (divergence.kind, alarm.kind) == ("divergence", "views disagree")
    assert alarm.cause == divergence.cause == "steps that are too large"


def test_a_collapse_under_views_that_disagree_is_laid_to_the_views():
    first, second = raised(train(), look(projector={"effective_rank": 1.1}, intraclass_correlation=0.05))
    assert {first.kind, second.kind} == {"dimensional collapse", "views disagree"}
    assert first.cause == second.cause
    assert "augmentation" in first.cause


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (
            look(backbone={"relative_variance": 3.2e-5}),
            "embeddings vary by 3.2e-05 of their mean square on 1280 held-out images, expected 0.001 or more",
        ),
        (
            look(backbone={"collapsed_dimensions": 64}),
            "50.0% of the 128 dimensions that 1280 held-out images resolve are dead, expected at most 16.7%",
        ),
        (
            look(backbone={"collapsed_dimensions": 169, "dimensions": 512, "samples": 200}),
            "70.0% of the 100 dimensions that 200 held-out images resolve are dead, expected at most 16.7%",
        ),
        (LINE, "effective rank 1.100 of 512 dimensions on 1280 held-out images, expected 2 or more"),
        (look(backbone={"effective_rank": 1.996}), "effective rank 1.996 of 128 dimensions on 1280 held-out images, expected 2 or more"),
        (STRANGERS, "views of one image share 5.0% of the variance, expected 20% or more"),
    ],
)
def test_an_alarm_says_what_was_measured_and_what_was_expected(row, found):
    (alarm,) = raised(row)
    assert f"{alarm.kind}, {alarm.where}: {found}; probably {alarm.cause}" == alarm.message


@pytest.mark.parametrize("n", [60, 99, 100, 150, 200, 1000])
def test_noise_in_all_directions_has_no_dimension_missing_however_few_the_images(n):
    spectrum = Spectrum.from_embeddings(torch.randn(n, 100, generator=torch.Generator().manual_seed(0)))
    assert missing_share(spectrum.collapsed_dimensions(), 100, n) == 0


@pytest.mark.parametrize(("n", "rank"), [(1000, 25), (1000, 99), (150, 25), (60, 3)])
def test_a_rank_that_is_less_than_images_resolve_is_missing(n, rank):
    generator = torch.Generator().manual_seed(0)
    Z = torch.randn(n, rank, generator=generator, dtype=torch.float64) @ torch.randn(rank, 100, generator=generator, dtype=torch.float64)
    spectrum = Spectrum.from_embeddings(Z)
    assert missing_share(spectrum.collapsed_dimensions(), 100, n) == pytest.approx(1 - rank / min(100, n // 2))


@pytest.mark.parametrize("D", [1, 2, 4, 128])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8, 20])
@pytest.mark.parametrize("where", ["backbone", "projector"])
def test_noise_is_no_collapse_however_few_the_images_and_dimensions(n, D, where):
    measured = asdict(
        SpectrumMetrics.from_spectrum(Spectrum.from_embeddings(torch.randn(n, D, generator=torch.Generator().manual_seed(0))))
    )
    assert collapse(measured, where) is None


def test_eight_images_tell_a_collapse_in_four_dimensions():
    line, point = torch.randn(8, 1, generator=torch.Generator().manual_seed(0)) * torch.ones(4), torch.ones(8, 4)
    (rank, *_), (spread, *_) = (
        collapse(asdict(SpectrumMetrics.from_spectrum(Spectrum.from_embeddings(Z))), "projector") for Z in (line, point)
    )
    assert (rank, spread) == ("dimensional collapse", "complete collapse")


@pytest.mark.parametrize("n", [0, 1, 2])
def test_next_to_no_images_are_no_reason_for_alarm(n):
    assert missing_share(0, 100, n) == 0


@given(st.integers(1, 10**6), st.integers(0, 10**5))
def test_spectra_settle_between_a_twentieth_and_a_quarter_of_a_run_and_not_in_its_first_steps(steps, warmup):
    start = module.burn_in_end(steps=steps, warmup=warmup)
    assert max(steps / 20, 50) <= start <= max(steps / 4 + 1, 50)
    assert start >= min(3 * warmup, steps / 4)


def test_no_term_outweighs_the_rest_where_there_is_no_rest():
    assert outweighing({}) is None
    assert outweighing({"one": 7.0}) is None
    assert outweighing({"one": 7.0, "two": 0.0}) is None
    assert outweighing({"one": 101.0, "two": -0.5, "three": 0.5}) == ("one", 101.0)
    assert outweighing({"one": 99.0, "two": -0.5, "three": 0.5}) is None
