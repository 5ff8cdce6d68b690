import errno
import os

import pytest

from fullrank.errors import UserError
from fullrank.files import atomic_write


def test_a_failure_leaves_no_file(tmp_path):
    with pytest.raises(KeyError), atomic_write(tmp_path / "a.txt") as temporary:
        raise KeyError(temporary.write_text("half"))
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_old_file(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(KeyError), atomic_write(tmp_path / "a.txt", overwrite=True) as temporary:
        raise KeyError(temporary.write_text("half"))
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.txt", "old")]


def test_a_file_is_not_overwritten_by_default(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with (
        pytest.raises(
            UserError, match=r"a\.txt exists already; choose another file, or replace .* --overwrite \(overwrite=True"
        ),
        atomic_write(tmp_path / "a.txt"),
    ):
        pytest.fail("the body of the context ran")
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_file_is_overwritten_on_request(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with atomic_write(tmp_path / "a.txt", overwrite=True) as temporary:
        temporary.write_text("new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.txt", "new")]


def test_a_folder_is_an_error(tmp_path):
    with pytest.raises(UserError, match="is a folder, expected a file"), atomic_write(tmp_path, overwrite=True):
        pytest.fail("the body of the context ran")


def test_a_file_in_place_of_a_folder_is_a_user_error(tmp_path):
    (tmp_path / "a").write_text("")
    with (
        pytest.raises(UserError, match=r"cannot write .*b\.txt \(.*\); choose another folder"),
        atomic_write(tmp_path / "a" / "b.txt"),
    ):
        pytest.fail("the body of the context ran")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_an_error_before_the_work(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="fix its permissions"), atomic_write(tmp_path / "a.txt"):
        pytest.fail("the body of the context ran")


def test_a_full_disk_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match=r"no space left for .*a\.txt; free some"), atomic_write(tmp_path / "a.txt"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_other_errors_pass_through(tmp_path):
    with pytest.raises(ConnectionError), atomic_write(tmp_path / "a.txt"):
        raise ConnectionError("an error of the body")


def test_an_untrusted_link_in_place_of_the_temporary_file_is_not_followed(tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("kept")
    (tmp_path / f".a.txt.{os.getpid()}.tmp").symlink_to(other)
    with atomic_write(tmp_path / "a.txt") as temporary:
        temporary.write_text("new")
    assert (other.read_text(), (tmp_path / "a.txt").read_text()) == ("kept", "new")
