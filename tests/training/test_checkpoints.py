import errno
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from fullrank.errors import UserError
from fullrank.training import list_checkpoints, save_checkpoint
from fullrank.training.checkpoints import recover_checkpoints
from small import Payload

FILES = ("model.safetensors", "state.pt", "meta.json")
READ = {"model.safetensors": "weights", "state.pt": "state", "meta.json": "meta"}


def save(folder, step, value=None, **keywords):
    value = float(step if value is None else value)
    state = {"step": step, "optimizer": {"momentum": torch.full((3,), value)}}
    weights = {"w": torch.full((2, 2), value)}
    return save_checkpoint(folder, step, weights=weights, state=state, meta={"recipe": "abc"}, **keywords)


def assert_complete(checkpoint, value=None):
    value = float(checkpoint.step if value is None else value)
    assert torch.equal(checkpoint.weights()["w"], torch.full((2, 2), value))
    assert checkpoint.meta().items() >= {"step": checkpoint.step, "recipe": "abc"}.items()
    assert sorted(path.name for path in checkpoint.path.iterdir()) in (sorted(FILES), sorted({*FILES} - {"state.pt"}))


def assert_one_line(caught, *parts):
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in parts), caught.value


def test_saved_values_are_read_back(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.randn(5, 3, 8, 8)).square().sum().backward()
    optimizer.step()
    saved = {"weights": network.state_dict(), "state": {"optimizer": optimizer.state_dict()}, "meta": {"a": 1}}
    save_checkpoint(tmp_path / "checkpoints", 12, **saved)
    (checkpoint,) = list_checkpoints(tmp_path / "checkpoints")
    assert checkpoint.path == tmp_path / "checkpoints" / "step-00000012"
    assert (checkpoint.meta()["step"], checkpoint.meta()["a"]) == (12, 1)
    weights, state = checkpoint.weights(), checkpoint.state()["optimizer"]
    assert weights.keys() == network.state_dict().keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in network.state_dict().items())
    for i, moments in optimizer.state_dict()["state"].items():
        assert all(torch.equal(state["state"][i][name], tensor) for name, tensor in moments.items())
    assert state["param_groups"] == optimizer.state_dict()["param_groups"]


def test_only_checkpoints_are_listed_by_step(tmp_path):
    for step in (100_000_000, 2, 11):
        save(tmp_path, step, keep=-1)
    for name in (".tmp-00000003", "step-x", "other"):
        (tmp_path / name).mkdir()
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == [2, 11, 100_000_000]


class Killed(BaseException):
    """Raised in place of the end of the process; no code catches this exception."""


@pytest.mark.parametrize("name", FILES)
def test_a_crash_in_the_middle_of_a_file_leaves_the_old_checkpoint_complete(tmp_path, monkeypatch, name):
    save(tmp_path, 1)
    whole = Path.write_bytes

    def killed(self, data):
        whole(self, data[: len(data) // 2] if self.name == name else data)
        if self.name == name:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", killed)
        with pytest.raises(Killed):
            save(tmp_path, 2)
    (old,) = list_checkpoints(tmp_path)
    assert_complete(old)
    assert old.state()["step"] == 1


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("step", [2, 1], ids=["a new step", "the same step again"])
def test_a_full_disk_is_one_line_and_leaves_the_old_checkpoint_complete(tmp_path, monkeypatch, name, step):
    save(tmp_path, 1)
    whole = Path.write_bytes

    def full(self, data):
        whole(self, data[:10])
        if self.name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError) as caught:
        save(tmp_path, step, value=7)
    assert_one_line(caught, f"step {step}", str(tmp_path), "No space left", "free some space", "--resume")
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert_complete(list_checkpoints(tmp_path)[0], 1)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["half", "garbage", "empty", "a folder"])
def test_a_damaged_file_is_named_with_the_remedy(tmp_path, name, damage):
    save(tmp_path, 1)
    checkpoint = save(tmp_path, 2)
    file = checkpoint.path / name
    content = file.read_bytes()
    file.unlink()
    if damage == "a folder":
        file.mkdir()
    else:
        damaged = {"half": content[: len(content) // 2], "garbage": b"\xff\x00garbage" * 9, "empty": b""}
        file.write_bytes(damaged[damage])
    with pytest.raises(UserError, match="remove this folder to use the previous checkpoint") as caught:
        getattr(checkpoint, READ[name])()
    assert_one_line(caught, str(file))


def test_code_in_the_state_is_not_run(tmp_path):
    checkpoint, target = save(tmp_path, 1), tmp_path / "harm"
    torch.save({"optimizer": Payload(target)}, checkpoint.path / "state.pt")
    with pytest.raises(UserError) as caught:
        checkpoint.state()
    assert_one_line(caught, "state.pt")
    assert not target.exists()
    torch.load(checkpoint.path / "state.pt", weights_only=False)
    assert target.exists()  # without weights_only it runs


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt"])
def test_one_flipped_byte_is_found(tmp_path, name):
    save(tmp_path, 1)
    checkpoint = save(tmp_path, 2)
    content = bytearray((checkpoint.path / name).read_bytes())
    for position in range(0, len(content), max(len(content) // 40, 1)):
        content[position] ^= 1
        (checkpoint.path / name).write_bytes(content)
        with pytest.raises(UserError, match=r"checksum differs.*previous checkpoint") as caught:
            getattr(checkpoint, READ[name])()
        assert_one_line(caught, str(checkpoint.path / name))
        content[position] ^= 1
    (checkpoint.path / name).write_bytes(content)
    assert_complete(checkpoint)


@pytest.mark.parametrize(("keep", "expected"), [(1, [5]), (3, [3, 4, 5]), (9, [1, 2, 3, 4, 5]), (-1, [1, 2, 3, 4, 5])])
def test_the_newest_checkpoints_are_kept(tmp_path, keep, expected):
    for step in (1, 2, 3, 4, 5):
        save(tmp_path, step, keep=keep)
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step:08d}" for step in expected]


def test_a_checkpoint_that_was_being_replaced_is_recovered(tmp_path):
    save(tmp_path, 1)
    os.replace(tmp_path / "step-00000001", tmp_path / ".previous-00000001")
    (tmp_path / ".tmp-00000001").mkdir()
    recover_checkpoints(tmp_path)
    assert_complete(list_checkpoints(tmp_path)[0], 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_a_link_to_the_checkpoints_of_another_run_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".tmp-00000001").mkdir()
    (tmp_path / "checkpoints").symlink_to("other")
    with pytest.raises(UserError, match="is a link to other"):
        recover_checkpoints(tmp_path / "checkpoints")
    assert (tmp_path / "other" / ".tmp-00000001").exists()
