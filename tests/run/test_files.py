from pathlib import Path

import pytest

from fullrank.errors import UserError
from fullrank.run import read_json, write_json
from fullrank.run.files import read_jsonl, write_text


def test_objects_are_read_in_order(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert read_jsonl(path) == ([], None)
    path.write_text('{"step": 1}\n{"step": 2}\n')
    assert read_jsonl(path) == ([{"step": 1}, {"step": 2}], None)


@pytest.mark.parametrize("cut", range(1, len('{"step": 22}')))
def test_an_incomplete_last_line_is_ignored_and_reported(tmp_path, cut):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n' + '{"step": 22}'[:cut])
    assert read_jsonl(path) == ([{"step": 1}], 2)


def test_a_last_line_that_lacks_only_its_newline_is_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n{"step": 22}')
    assert read_jsonl(path) == ([{"step": 1}, {"step": 22}], None)


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        (["{", '{"step": 2}'], 1),
        (['{"step": 1}', "nonsense", '{"step": 3}'], 2),
        (['{"step": 1}', "[2]", '{"step": 3}'], 2),
        (['{"step": 1}', "", '{"step": 3}'], 2),
        (['{"step": 1}', "\xff\x00", '{"step": 3}'], 2),
        (['{"step": 1}', "{"], 2),
        (['{"step": 1}', "7"], 2),
    ],
)
def test_any_other_damage_is_reported_with_its_line(tmp_path, lines, number):
    path = tmp_path / "rows.jsonl"
    path.write_bytes("".join(line + "\n" for line in lines).encode("latin-1"))
    with pytest.raises(UserError, match=f"^{path}, line {number}: not a JSON object .*; fix or remove the line$"):
        read_jsonl(path)


@pytest.mark.parametrize("content", [b"{", b"", b"[1]", b"\xff\xfe"])
def test_damaged_json_is_named(tmp_path, content):
    (tmp_path / "evaluation.json").write_bytes(content)
    with pytest.raises(
        UserError, match=f"^{tmp_path / 'evaluation.json'} cannot be read .*; restore it, or start a new run$"
    ):
        read_json(tmp_path / "evaluation.json")


def test_json_is_written_atomically(tmp_path, monkeypatch):
    path = tmp_path / "environment.json"
    write_json(path, {"a": 1})
    whole = Path.write_text

    def cut_short(self, text):
        whole(self, text[:3])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", cut_short)
        with pytest.raises(KeyboardInterrupt):
            write_json(path, {"a": 2})
    assert read_json(path) == {"a": 1}
    write_text(path, '{"a": 3}')
    assert read_json(path) == {"a": 3}


@pytest.mark.parametrize("read", [read_json, read_jsonl])
def test_a_device_is_never_read(tmp_path, read):
    (tmp_path / "rows.json").symlink_to("/dev/null")  # of /dev/zero or a FIFO, reading would never end
    with pytest.raises(UserError, match="device"):
        read(tmp_path / "rows.json")
