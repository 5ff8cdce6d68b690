import pytest
import torch
from torchvision.transforms.v2 import functional as F

from fullrank.views.resample import crop, triangle


@pytest.mark.parametrize("size", [7, 32, 50])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_equals_the_resized_crop_of_torchvision(size, channels):
    g = torch.Generator().manual_seed(size)
    images = torch.randint(0, 256, (5, channels, 40, 60), generator=g, dtype=torch.uint8)
    height, width = torch.randint(1, 41, (2, 5), generator=g), torch.randint(1, 61, (2, 5), generator=g)
    top, left = (torch.rand(2, 5, generator=g) * (41 - height)).long(), (torch.rand(2, 5, generator=g) * (61 - width)).long()
    flips = torch.rand(2, 5, 2, generator=g) < 0.5
    out = crop(images, torch.stack([top, left, height, width], -1).float(), flips.float(), size=size)
    for v in range(2):
        for i in range(5):
            box = [int(t[v, i]) for t in (top, left, height, width)]
            expected = F.resized_crop(images[i].float() / 255, *box, [size, size], antialias=True)
            expected = expected.flip([axis for axis, on in zip((-1, -2), flips[v, i], strict=True) if on])
            torch.testing.assert_close(out[v, i], expected, atol=1e-5, rtol=0)


def test_rows_of_weights_sum_to_one_and_stay_in_the_box():
    w = triangle(torch.tensor([3.0]), torch.tensor([11.0]), torch.tensor([False]), size=5, full=20)[0]
    torch.testing.assert_close(w.sum(-1), torch.ones(5))
    assert w[:, :3].count_nonzero() == 0
    assert w[:, 14:].count_nonzero() == 0


def test_a_crop_of_its_own_size_is_a_copy():
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    out = crop(images, torch.tensor([0.0, 0, 16, 16]).expand(1, 2, 4), torch.zeros(1, 2, 2), size=16)
    torch.testing.assert_close(out[0], images.float() / 255)
