import errno
import os

import pytest

from fullrank.atomic import atomic_write
from fullrank.errors import UserError


def test_a_failure_leaves_nothing_behind(tmp_path):
    with pytest.raises(KeyError), atomic_write(tmp_path / "a.txt") as draft:
        raise KeyError(draft.write_text("half"))
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_file_as_it_was(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(KeyError), atomic_write(tmp_path / "a.txt", overwrite=True) as draft:
        raise KeyError(draft.write_text("half"))
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.txt", "old")]


def test_a_file_is_never_overwritten_unasked(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with (
        pytest.raises(UserError, match=r"a\.txt exists already; choose another file, or replace it with --overwrite \(overwrite=True"),
        atomic_write(tmp_path / "a.txt"),
    ):
        pytest.fail("the work has begun")
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_file_is_overwritten_when_asked(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with atomic_write(tmp_path / "a.txt", overwrite=True) as draft:
        draft.write_text("new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.txt", "new")]


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(UserError, match="is a folder, expected a file"), atomic_write(tmp_path, overwrite=True):
        pytest.fail("the work has begun")


def test_a_file_in_the_place_of_a_folder_is_the_users_to_mend(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*b\.txt \(.*\); choose another folder"), atomic_write(tmp_path / "a" / "b.txt"):
        pytest.fail("the work has begun")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_answered_before_the_work(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="mend its permissions"), atomic_write(tmp_path / "a.txt"):
        pytest.fail("the work has begun")


def test_a_full_disk_is_the_users_to_mend(tmp_path):
    with pytest.raises(UserError, match=r"no space left for .*a\.txt; free some"), atomic_write(tmp_path / "a.txt"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_other_errors_of_the_work_stay_what_they_are(tmp_path):
    with pytest.raises(ConnectionError), atomic_write(tmp_path / "a.txt"):
        raise ConnectionError("reading went wrong, not writing")
