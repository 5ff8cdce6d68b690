import pytest

from fullrank.errors import UserError
from fullrank.views import BlurConfig, CropConfig, JitterConfig, ViewConfig


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ViewConfig(count=0), "count: got 0"),
        (lambda: ViewConfig(flip=1.5), "flip: got 1.5"),
        (lambda: JitterConfig(hue=0.6), "hue: got 0.6"),
        (lambda: CropConfig(scale=(1.0, 0.2)), "scale: got"),
        (lambda: BlurConfig(sigma=(0.0, 2.0)), "sigma.0: got 0.0"),
    ],
)
def test_an_invalid_value_is_named(make, field):
    with pytest.raises(UserError, match=field):
        make()
