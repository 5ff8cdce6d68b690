import runpy
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "phases.py"


@pytest.fixture(scope="module")
def phases():
    return runpy.run_path(str(SCRIPT), run_name="phases")


@pytest.fixture
def watch(phases, monkeypatch):
    """A stopwatch whose clocks advance by one second with each reading."""
    readings = iter(range(10_000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(readings)))
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    return phases["Stopwatch"]("cpu")


def test_nested_phases_add_up_to_the_whole(watch):
    watch.mark()
    with watch.phase("batch"):
        with watch.phase("views"):
            pass
        with watch.phase("views"):
            pass
    with watch.phase("objective backward"):
        watch.switch("network backward")
        watch.switch("network backward")  # a second gradient that arrives changes nothing
    watch.mark()
    (step,) = watch.seconds()
    assert {name: wall for name, (wall, _) in step.items()} == {
        "rest": 3.0,
        "batch": 3.0,
        "views": 2.0,
        "objective backward": 1.0,
        "network backward": 1.0,
    }


def test_functions_of_an_evaluation_belong_to_it(watch, phases):
    watch.mark()
    with watch.phase(phases["EVALUATION"]), watch.phase("views"), watch.phase("objective forward"):
        pass
    assert [name for step in watch.seconds() for name in step] == ["rest", phases["EVALUATION"]]


def test_periodic_phases_count_by_their_share_of_the_steps(phases):
    def step(**seconds):
        return {name.replace("_", " "): [value, value] for name, value in seconds.items()}

    steps = [
        step(network_forward=1.0, network_backward=2.0, log=0.5),
        step(network_forward=1.0, network_backward=2.0),
    ] * 2
    steps[0] |= step(spectrum_evaluation=8.0, checkpoint=100.0)
    run = {
        "seconds": steps,
        "batch": 8,
        "precision": "32-true",
        "evaluations_per_step": 0.125,
        "evaluations": 5,
        "images_per_evaluation": 64,
    }
    found = phases["summarize"]([run])
    wall = {name: values[0] for name, values in found["milliseconds"].items()}
    assert wall == {"network forward": 1000, "network backward": 2000, "log": 250, "spectrum evaluation": 1000}
    assert found["outside_the_network"][0] == pytest.approx(1.25 / 4.25, abs=1e-4)
