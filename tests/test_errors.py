import pytest

from fullrank.errors import UserError, pick, suggest


def test_pick_returns_the_value():
    assert pick("b", {"a": 1, "b": 2}, "letter") == 2


def test_the_error_lists_the_options_and_suggests_the_nearest():
    words = r"^unknown objective 'vicregg'; choose from simclr, vicreg; did you mean 'vicreg'\?$"
    with pytest.raises(UserError, match=words):
        pick("vicregg", {"vicreg": 1, "simclr": 2}, "objective")


def test_no_suggestion_without_a_close_match():
    assert suggest("zebra", ["simclr", "vicreg"]) == ""


def test_a_user_error_is_a_value_error():
    assert issubclass(UserError, ValueError)
