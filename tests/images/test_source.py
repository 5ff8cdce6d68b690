import numpy as np

from fullrank.images import open_images


def test_a_subset_of_a_subset_speaks_of_the_whole():
    images = open_images("digits")["all"]
    some = images.subset([9, 3, 7, 3]).subset([2, 1])
    assert [some.name(i) for i in range(len(some))] == ["digits[7]", "digits[3]"]
    assert [some.label(i) for i in range(2)] == [images.label(7), images.label(3)]
    assert np.array_equal(some.open(0), images.open(7))
    assert (some.source, some.classes) == (images.source, images.classes)
