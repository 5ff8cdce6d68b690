import pytest

from fullrank.errors import Interrupted, UserError, pick, suggest


def test_pick_looks_up():
    assert pick("b", {"a": 1, "b": 2}, "letter") == 2


def test_pick_names_what_was_received_the_choices_and_the_nearest():
    with pytest.raises(UserError, match=r"^unknown objective 'vicregg'; choose from simclr, vicreg; did you mean 'vicreg'\?$"):
        pick("vicregg", {"vicreg": 1, "simclr": 2}, "objective")


def test_nothing_near_is_not_suggested():
    assert suggest("zebra", ["simclr", "vicreg"]) == ""


def test_a_user_error_is_a_value_error():
    assert issubclass(UserError, ValueError)


def test_an_interruption_says_by_what_and_is_no_mistake():
    error = Interrupted(15, "stopped after step 3 of 9")
    assert (error.signum, str(error)) == (15, "stopped after step 3 of 9")
    assert not isinstance(error, UserError)
