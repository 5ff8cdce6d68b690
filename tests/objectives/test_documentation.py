"""The tables of docs/objectives.md agree with the signatures."""

import json
import re
from pathlib import Path

import pytest

from fullrank.objectives import OBJECTIVES
from fullrank.objectives.signature import hyperparameters
from fullrank.testing import objective_case
from fullrank.testing.cost import counted_exponents

ROOT = Path(__file__).parents[2]
GROWTH = json.loads(ROOT.joinpath("benchmarks/results/growth.json").read_text(encoding="utf-8"))["exponents of N and D"]
PAGE = ROOT.joinpath("docs/objectives.md").read_text(encoding="utf-8")
DEFAULTS = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| `(\w+=.*?)` \|", PAGE, flags=re.MULTILINE)
TABLE = {name: numbers for names, numbers in DEFAULTS for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_in_the_table_of_objectives(name):
    row = re.search(rf"^\| `{name}` \| .* \| .* \| .* \| .* \| (.*) \| .* \|$", PAGE, flags=re.MULTILINE)
    assert row is not None
    assert row[1] == "{:.1f}, {:.1f}".format(*GROWTH[name])


@pytest.mark.parametrize("name", ["frossl", "ivne", "tico", "byol", "corinfomax"])
def test_the_committed_exponents_are_those_of_the_code(name):
    case = objective_case(OBJECTIVES[name])
    assert [round(exponent, 1) for exponent in counted_exponents(lambda D: case)] == GROWTH[name]


@pytest.mark.parametrize(
    "name", [name for name, f in OBJECTIVES.items() if hyperparameters(f) and name != "directclr_paper"]
)
def test_the_defaults_on_the_page_are_those_of_the_signature(name):
    signature = {number: repr(default) for number, default in hyperparameters(OBJECTIVES[name]).items()}
    page = dict(pair.split("=") for pair in TABLE[name].split(", "))
    if name == "frossl":  # its other hyperparameters have their own section
        signature = {"invariance": signature["invariance"]}
    assert page == signature
