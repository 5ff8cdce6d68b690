import pytest

from fullrank.report.answers import did_it_learn
from fullrank.report.measures import MEASURES, differing_conditions
from fullrank.report.online_accuracy import online_caption, online_figure
from fullrank.report.text import run_facts
from fullrank.run.rows import OnlineRow


@pytest.fixture
def scored(make_summary):
    """`scored("a", {3: 0.5, 10: 0.6}, images=100, validation=0.0, top5=None)`: a run with scores after epochs."""

    def make(label, scores, *, images=100, validation=0.0, top5=None):
        rows = [
            OnlineRow(step=10 * epoch, epoch=float(epoch), accuracy=value, images=images, top5=top5)
            for epoch, value in scores.items()
        ]
        return make_summary(label=label, online=rows, recipe={"data": {"source": "cifar10", "validation": validation}})

    return make


def test_the_curves_are_over_epochs_for_several_runs(scored, make_summary):
    figure = online_figure([scored("a", {3: 0.5, 10: 0.625}), make_summary(label="b"), scored("c", {3: 0.25})])
    points = {trace["name"]: (trace["x"], trace["y"]) for trace in figure["data"]}
    assert points == {"a": ([3.0, 10.0], [0.5, 0.625]), "c": ([3.0], [0.25])}
    assert figure["layout"]["xaxis"]["title"]["text"] == "epoch"
    assert figure["layout"]["xaxis"]["range"][1] >= 10
    assert len({trace["line"]["color"] for trace in figure["data"]}) == 2


def test_the_top_5_accuracy_has_a_panel_of_its_own(scored):
    figure = online_figure([scored("a", {3: 0.5}, top5=0.75)])
    assert [(trace["yaxis"], trace["y"]) for trace in figure["data"]] == [("y", [0.5]), ("y2", [0.75])]
    above, below = (figure["layout"][name]["domain"] for name in ("yaxis", "yaxis2"))
    assert 0 <= below[0] < below[1] < above[0] < above[1] < 1


def test_a_linear_probe_on_other_labels_is_named_and_measured_apart(make_summary):
    rows = [
        OnlineRow(step=step, epoch=step / 10, accuracy=0.2 + step / 100, images=1000, probe="linear")
        for step in (0, 10, 20)
    ]
    run = make_summary(label="a", online=rows, recipe={"probe": {"labelled": "labels.csv"}})
    figure = online_figure([run])
    assert figure["data"][0]["x"] == [0.0, 1.0, 2.0]
    assert "a linear probe on the labelled images" in figure["layout"]["annotations"][0]["text"]
    assert "a linear probe on the labelled images" in online_caption([run])
    values = {measure.name: (measure.value(run), measure.detail and measure.detail(run)) for measure in MEASURES}
    assert values["online accuracy, all test images"] == ("", "")
    value, detail = values["linear probe during training"]
    assert value == "40.0\N{NO-BREAK SPACE}%"
    assert "20.0\N{NO-BREAK SPACE}% before the first step" in detail
    assert "20.0\N{NO-BREAK SPACE}% before the first step, 40.0" in did_it_learn(run).text


def test_without_scores_there_is_no_figure(make_summary):
    assert online_figure([make_summary()]) is None


def test_the_caption_says_on_how_many_images(scored):
    runs = [scored("a", {3: 0.5}), scored("b", {3: 0.5})]
    assert online_caption(runs).endswith("n = 100 images.")
    assert online_caption([*runs, scored("c", {3: 0.5}, images=90)]).endswith(
        "a: n = 100, b: n = 100, c: n = 90 images."
    )
    assert "all validation images" in online_caption([scored("a", {3: 0.5}, validation=0.1)])


def test_scores_on_test_and_on_validation_images_are_not_compared(scored):
    (measure,) = (measure for measure in MEASURES if measure.name == "online accuracy, all test images")
    older = scored("older", {3: 0.5})
    del older.recipe["data"]["validation"]
    assert measure.value(older) == "50.0\N{NO-BREAK SPACE}%"
    assert not differing_conditions(measure, [older, scored("a", {3: 0.5})])
    assert differing_conditions(measure, [older, scored("b", {3: 0.5}, validation=0.1)]) == ["data.validation"]


def test_the_summary_names_subset_and_validation(make_summary):
    data = {"source": "cifar10", "subset": 5000, "validation": 0.1}
    facts = [
        run_facts(make_summary(recipe={"data": each}))["data"]
        for each in (data, data | {"validation": 0.0}, {"source": "cifar10"})
    ]
    assert facts == [
        "cifar10, 10 % of the training images for validation, 5\N{NARROW NO-BREAK SPACE}000 of the others",
        "cifar10, 5\N{NARROW NO-BREAK SPACE}000 of the training images",
        "cifar10",
    ]
