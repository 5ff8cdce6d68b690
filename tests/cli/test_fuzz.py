"""Random recipes, flags and files: a command succeeds or is refused in one line, and no file of the user's changes.

Nothing is trained: the recipe that a command line gives is checked, and its networks are not built.
"""

import json
import tempfile
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from fullrank.cli import main
from fullrank.cli.pretrain_recipe import read_arguments
from fullrank.errors import UserError
from fullrank.recipes import RECIPES, Recipe, check, from_dict, read_recipe, to_dict, with_choices
from fullrank.recipes.recipe import flatten


def bounded(examples):
    """Settings of a test that takes seconds and is the same at each call."""
    return settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )


QUIET = Console(quiet=True)

NUMBERS = st.one_of(
    st.integers(-3, 300),
    st.sampled_from([2**31, 2**63, 2**64, 10**30, -(10**30)]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([1e-300, 1e308, -0.0, 0.5, 1.0]),
)
TEXTS = st.one_of(
    st.sampled_from(["", ".", "..", "/", "a/b", "os:system", ":", "cpu", "none", "{}", "[]", "x" * 300]),
    st.text(max_size=8),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
NAMES = sorted(flatten(to_dict(RECIPES["digits"])))
FLAGS = st.sampled_from(
    [name for name in NAMES if not name.startswith(("hyper", "method")) and name not in ("name", "objective")]
)


def valid_or_user_error(action):
    """The result of `action`, or None after a `UserError`, whose message must say something."""
    try:
        return action()
    except UserError as error:
        message = str(error)
    assert 0 < len(message) < 5000
    return None


def put(tree, name, value):
    """A copy of a nested JSON object with another value at a dotted name."""
    key, _, rest = name.partition(".")
    if isinstance(tree, list):
        return [
            put(branch, rest, value) if str(i) == key and rest else value if str(i) == key else branch
            for i, branch in enumerate(tree)
        ]
    return {**tree, key: put(tree[key], rest, value) if rest else value}


@bounded(100)
@given(changes=st.dictionaries(st.sampled_from(NAMES), JSON, min_size=1, max_size=3))
@example(changes={"views.0.count": 10**6})
@example(changes={"data.std": [float("inf")]})
@example(changes={"seed": 2**64})
def test_a_recipe_of_random_values_is_valid_or_refused(changes):
    values = to_dict(RECIPES["digits"])
    for name, value in changes.items():
        values = put(values, name, value)
    recipe = valid_or_user_error(lambda: from_dict(values))
    if recipe is not None:
        assert from_dict(to_dict(recipe)) == recipe
        valid_or_user_error(lambda: check(recipe))


@bounded(100)
@given(content=st.one_of(st.binary(max_size=40), JSON.map(json.dumps).map(str.encode)))
@example(content=b"[" * 100_000)
@example(content=b'{"epochs": 1e999}')
@example(content=b'\xff\xfe{"epochs": 3}')
def test_a_random_recipe_file_is_valid_or_refused(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.json"
        path.write_bytes(content)
        valid_or_user_error(lambda: read_recipe(path))
        assert path.read_bytes() == content


def unchecked(config, **changes):
    """A copy of a dataclass with other values, without the type checks that only the tests have."""
    copy = object.__new__(type(config))
    copy.__dict__.update(vars(config) | changes)
    if hasattr(copy, "__post_init__"):
        copy.__post_init__()
    return copy


PARTS = [None, *(part.name for part in fields(Recipe) if is_dataclass(getattr(Recipe(), part.name)))]


@bounded(100)
@given(data=st.data())
def test_a_random_value_from_python_is_valid_or_refused(data):
    name, value = data.draw(st.sampled_from(PARTS)), data.draw(JSON)
    part = Recipe() if name is None else getattr(Recipe(), name)
    field = data.draw(st.sampled_from([each.name for each in fields(part)]))
    changed = valid_or_user_error(lambda: unchecked(part, **{field: value}))
    if changed is not None:
        recipe = changed if name is None else valid_or_user_error(lambda: unchecked(Recipe(), **{name: changed}))
        if recipe is not None:
            valid_or_user_error(lambda: check(recipe))


@bounded(60)
@given(
    recipe=st.sampled_from(list(RECIPES.values())),
    epochs=st.none() | st.integers(1, 10**6),
    batch_size=st.none() | st.integers(2, 10**6),
    size=st.none() | st.integers(1, 2000),
    backbone=st.none() | st.sampled_from(["resnet18", "resnet50d", "test_vit", "convnext_atto"]),
    optimizer=st.none() | st.sampled_from(["adam", "adamw", "lars", "sgd"]),
)
def test_every_choice_gives_a_valid_recipe(recipe, **choices):
    found = with_choices(recipe, **choices)
    check(found)
    assert found.schedule.warmup <= found.epochs / 5
    assert 0 < found.optimizer.lr < 2000
    assert with_choices(found, **choices) == found


@bounded(25)
@given(
    name=st.sampled_from(["digits", "cifar10", "imagenet-directclr"]),
    flags=st.lists(st.tuples(FLAGS, st.one_of(NUMBERS.map(str), TEXTS)), min_size=1, max_size=3),
    joined=st.booleans(),
)
@example(name="digits", flags=[("epochs", "3"), ("batch_size", "1e400")], joined=True)
@example(name="digits", flags=[("views.0.size", "4"), ("backbone.name", "")], joined=False)
def test_random_flags_give_a_valid_recipe_or_are_refused(name, flags, joined):
    words = [word for flag, value in flags for word in ([f"--{flag}={value}"] if joined else [f"--{flag}", value])]
    parsed = valid_or_user_error(lambda: read_arguments([name, *words], QUIET))
    if parsed is not None:
        recipe, _ = parsed
        valid_or_user_error(lambda: check(recipe))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A working directory with a file of the user's."""
    (tmp_path / "mine.txt").write_text("precious")
    monkeypatch.chdir(tmp_path)
    return tmp_path


MODELS = st.one_of(
    TEXTS, st.sampled_from(["mine.txt", "random", "file:random", "file:mine.txt", "random@3", "timm:nothing", ".@1"])
)
COMMANDS = st.one_of(
    st.tuples(st.just("evaluate"), MODELS),
    st.tuples(st.just("spectrum"), MODELS),
    st.tuples(st.just("embed"), MODELS, st.just("--out"), st.sampled_from(["mine.txt", "a.parquet", ""])),
    st.tuples(st.just("export"), MODELS, st.just("--out"), st.sampled_from(["mine.txt", "a.onnx", "a.safetensors"])),
    st.tuples(st.just("report"), MODELS, st.just("--out"), st.sampled_from(["mine.txt", "a.html"])),
    st.tuples(
        st.just("pretrain"), st.sampled_from(["random", "random.json", "mine.txt", ".", "parquet:random", "folder:."])
    ),
    st.tuples(st.just("pretrain"), st.just("--resume"), MODELS),
    st.tuples(st.just("recipes"), TEXTS.filter(lambda text: text not in RECIPES and text not in ("-h", "--help"))),
)


@bounded(40)
@given(command=COMMANDS, content=st.binary(max_size=60))
def test_commands_on_random_files_are_refused_and_change_nothing(command, content, home, capsys):
    for name in ("random", "random.json"):
        (home / name).write_bytes(content)
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    capsys.readouterr()
    status = main(list(command))
    out, err = capsys.readouterr()
    assert status == 2, (command, out, err)
    assert err.splitlines()[-1].startswith("fullrank: ")
    assert "Traceback" not in err
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
