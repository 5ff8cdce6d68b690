import datasets
import pytest
from datasets.exceptions import DatasetNotFoundError

from fullrank.errors import UserError
from fullrank.images import open_images, open_stream


def refusing(error):
    def load_dataset(*args, **options):
        raise error

    return load_dataset


def test_a_hub_name_becomes_its_splits(parquet, monkeypatch):
    asked = []

    def load_dataset(path, name=None, **options):
        asked.append((path, name, options))
        return datasets.DatasetDict(train=datasets.Dataset.from_parquet(str(parquet()), keep_in_memory=True))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    images = open_images("hf:owner/name")["train"]
    assert images.source == "hf:owner/name[train]"
    assert images.open(0).size == (8, 6)
    open_images("hf:owner/name:fine")
    assert asked == [("owner/name", None, {}), ("owner/name", "fine", {})]


def test_without_a_network_the_line_says_how_to_go_on(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", refusing(ConnectionError("Couldn't reach 'a/b' on the Hub")))
    with pytest.raises(UserError, match=r"^cannot reach the Hugging Face hub for 'a/b', .* holds no copy; load it once .* parquet:PATH$"):
        open_images("hf:a/b")
    with pytest.raises(UserError, match="cannot reach"):
        open_stream("hf:a/b")


def test_the_library_itself_reports_being_offline_so(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(UserError, match="cannot reach the Hugging Face hub for 'uoft-cs/no-such-set'"):
        open_images("hf:uoft-cs/no-such-set")


def test_an_unknown_name_is_one_line(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", refusing(DatasetNotFoundError("Dataset 'a/b' doesn't exist on the Hub.\nMore.")))
    with pytest.raises(UserError, match="no data set 'a/b' on the Hugging Face hub, or no access"):
        open_images("hf:a/b")


@pytest.mark.parametrize(
    "error", [ValueError("Config name is missing.\nPick one"), RuntimeError("Dataset scripts are no longer supported")]
)
def test_any_other_refusal_keeps_its_first_line(monkeypatch, error):
    monkeypatch.setattr(datasets, "load_dataset", refusing(error))
    with pytest.raises(UserError, match=r"cannot load 'hf:a/b': (Config name is missing|Dataset scripts are no longer supported); choose"):
        open_images("hf:a/b")
