"""Contenders alternate, the first call does not count, and at least three rounds are made."""


def test_contenders_alternate():
    import timing

    calls = []
    found = timing.measure({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=5, seconds=0)
    assert "".join(calls) == "ab" * 4
    assert {time.rounds for time in found.values()} == {3}


def test_quartiles():
    import timing

    assert timing.summary([5.0, 1.0, 3.0, 2.0, 4.0]) == (3.0, 2.0, 4.0, 5)
    assert timing.summary([2.0]) == (2.0, 2.0, 2.0, 1)


def test_environment_says_what_was_measured_where():
    import timing

    found = timing.environment("no-such-package", n=3, seed=0)
    assert found["n"] == 3
    assert found["versions"]["no-such-package"] is None
    assert {"date", "commit", "processor", "gpu", "cores", "threads"} <= set(found)
