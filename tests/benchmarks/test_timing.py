"""Contenders take turns, the first call does not count, and at least three rounds are made."""

from benchmarks import timing


def test_contenders_take_turns():
    calls = []
    found = timing.measure({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=5, seconds=0)
    assert "".join(calls) == "ab" * 4
    assert {time.rounds for time in found.values()} == {3}


def test_quartiles():
    assert timing.summary([5.0, 1.0, 3.0, 2.0, 4.0]) == (3.0, 2.0, 4.0, 5)
    assert timing.summary([2.0]) == (2.0, 2.0, 2.0, 1)


def test_environment_says_what_was_measured_where():
    found = timing.environment("no-such-package", n=3, seed=0)
    assert (found["n"], found["no-such-package"]) == (3, None)
    assert {"date", "commit", "hardware", "torch"} <= set(found)
