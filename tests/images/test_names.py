import pytest

from fullrank.images.names import split_of_file


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train-00000-of-00001.parquet", "train"),
        ("data/validation-00002-of-00010.parquet", "validation"),
        ("my_split-00000-of-00001.parquet", "my_split"),
        ("Test.parquet", "test"),
        ("val2.parquet", "val"),
        ("train/0000.parquet", "train"),
        ("plain_text/test/0000.parquet", "test"),
        ("trainers.parquet", None),
        ("0000.parquet", None),
    ],
)
def test_the_split_is_read_from_the_name(path, split):
    assert split_of_file(path) == split
