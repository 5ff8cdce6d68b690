import numpy as np

from fullrank.images import as_images, load_images, open_images


def test_a_subset_of_a_subset_has_the_names_of_the_whole():
    images = open_images("digits")["all"]
    some = images.subset([9, 3, 7, 3]).subset([2, 1])
    assert [some.name(i) for i in range(len(some))] == ["digits[7]", "digits[3]"]
    assert some.labels.tolist() == images.labels[[7, 3]].tolist()
    assert np.array_equal(some.open(0), images.open(7))
    assert (some.source, some.classes) == (images.source, images.classes)


def test_images_have_no_groups_unless_they_are_given_and_a_subset_keeps_them():
    images = open_images("digits")["all"]
    assert np.array_equal(images.groups, np.full(1797, -1))
    images.groups = np.arange(1797) // 10
    chosen = images.subset([25, 3, 999])
    assert chosen.groups.tolist() == [2, 0, 99]
    assert chosen.subset([2]).groups.tolist() == [99]
    in_memory = load_images(chosen, channels=1)
    assert in_memory.to("cpu").groups.tolist() == [2, 0, 99]
    assert as_images(in_memory).groups.tolist() == [2, 0, 99]
