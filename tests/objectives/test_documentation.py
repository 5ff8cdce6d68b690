"""The tables of docs/objectives.md and docs/methods.md agree with the signatures."""

import re
from pathlib import Path

import pytest

from fullrank.objectives import OBJECTIVES
from fullrank.objectives.signature import hyperparameters

ROOT = Path(__file__).parents[2]
PAGE = "\n".join(ROOT.joinpath(f"docs/{name}.md").read_text("utf-8") for name in ("objectives", "methods"))
DEFAULTS = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| `(\w+=.*?)` \|", PAGE, flags=re.MULTILINE)
TABLE = {name: numbers for names, numbers in DEFAULTS for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_in_the_table_of_objectives(name):
    assert re.search(rf"^\| `{name}` \| ", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize(
    "name", [name for name, f in OBJECTIVES.items() if hyperparameters(f) and name != "directclr_paper"]
)
def test_the_defaults_on_the_page_are_those_of_the_signature(name):
    signature = {number: repr(default) for number, default in hyperparameters(OBJECTIVES[name]).items()}
    page = dict(pair.split("=") for pair in TABLE[name].split(", "))
    if name == "frossl":  # its other hyperparameters have their own section
        signature = {"invariance": signature["invariance"]}
    assert page == signature
