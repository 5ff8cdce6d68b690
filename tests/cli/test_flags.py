from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from fullrank.cli.flags import Model, call, parse
from fullrank.config import Share, config
from fullrank.errors import UserError


@config
class Inner:
    learning_rate: Share = 1.0
    """A long explanation, which needs more than one row in a box of eighty columns, so that it must be wrapped
    somewhere."""
    name: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Flags:
    inner: Inner = field(default_factory=Inner)
    scale: tuple[float, float] = (0.1, 1.0)


def measured(model: Model, /, *, out: Path, count: int = 3) -> tuple[str, Path, int]:
    """Measure.

    Args:
        model: what.
        out: where to.
        count: how often.
    """
    print("to standard output")
    return model, out, count


def test_flags_override_the_default_of_a_dataclass():
    default = Flags(scale=(0.5, 0.5))
    for flag in ("--inner.learning-rate", "--inner.learning_rate"):
        assert parse(Flags, [flag, "0.3"], command="x", default=default) == Flags(Inner(learning_rate=0.3), (0.5, 0.5))


def test_a_function_is_called_with_the_parsed_arguments(capsys):
    assert call(measured, ["run", "--out", "file"], command="x") == ("run", Path("file"), 3)
    assert capsys.readouterr().out == "to standard output\n"


def test_the_help_of_a_function_is_its_docstring(capsys):
    with pytest.raises(SystemExit) as stop:
        call(measured, ["--help"], command="x")
    assert not stop.value.code
    out = capsys.readouterr().out
    assert "usage: fullrank x [-h] MODEL --out PATH" in out
    assert "how often. (default: 3)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--inner.learning-rat 3", "learning-rat, 3; did you mean --inner.learning-rate?; "),
        ("--inner.learning-rate x", "--inner.learning-rate is 'x', expected a number;"),
        ("--inner.learning-rate 3", "inner: learning_rate: got 3.0, expected less than or equal to 1"),
        ("--inner.name c", "invalid choice 'c' for argument '--inner.name'. Expected one of ('a', 'b')"),
        ("--scale 1", "missing value for argument '--scale'. Expected 2 values"),
        ("thing", "unrecognized options: thing"),
    ],
)
def test_a_mistake_is_an_error_of_one_line(arguments, message, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)  # on a terminal, tyro draws coloured frames
    monkeypatch.setenv("TERM", "xterm-256color")
    with pytest.raises(UserError) as error:
        parse(Flags, arguments.split(), command="x")
    assert message in str(error.value)
    assert str(error.value).endswith("ee fullrank x --help")
    assert str(error.value).isprintable()


def test_missing_arguments_are_named():
    with pytest.raises(UserError, match=r"^missing from fullrank x: MODEL --out PATH; see fullrank x --help$"):
        call(measured, [], command="x")
