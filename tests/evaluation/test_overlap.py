import numpy as np
from PIL import Image

from fullrank.evaluation.overlap import count_overlap
from fullrank.images import open_images


def test_equal_pixels_overlap_whatever_the_names_and_formats(tmp_path):
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    for folder in ("pretraining", "test"):
        (tmp_path / folder).mkdir()
    for number in range(4):
        Image.fromarray(pixels[number]).save(tmp_path / "pretraining" / f"{number}.png")
    for number in range(2, 6):
        Image.fromarray(pixels[number]).save(tmp_path / "test" / f"photo{number}.bmp")
    (tmp_path / "test" / "broken.png").write_bytes(b"no image")
    test, pretraining = (open_images(str(tmp_path / name))["all"] for name in ("test", "pretraining"))
    assert count_overlap(test, pretraining, channels=3) == 2


def test_the_shape_counts(digits):
    images = digits.pixels[:4]
    wide = type(digits)(images.reshape(4, 1, 4, 16), digits.labels[:4], digits.names[:4], digits.classes)
    tall = type(digits)(images, digits.labels[:4], digits.names[:4], digits.classes)
    assert count_overlap(tall, wide, channels=1) == 0
    assert count_overlap(tall, tall, channels=1) == 4
