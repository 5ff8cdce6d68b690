import itertools
import operator
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch

from fullrank.errors import UserError
from fullrank.images import decode
from fullrank.images.parallel import parallel_map


@pytest.mark.parametrize("workers", [0, 2])
def test_results_come_in_the_order_of_the_tasks(workers):
    assert list(parallel_map(operator.neg, iter(range(20)), workers=workers)) == [-k for k in range(20)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_user_error_of_a_worker_is_raised_unchanged(workers):
    array = torch.zeros(2, 2, 5, dtype=torch.uint8).numpy()
    with pytest.raises(UserError) as caught:
        list(parallel_map(partial(decode, array), [3], workers=workers))
    assert str(caught.value).startswith("'image' has 5 channels, expected 3")
    assert "\n" not in str(caught.value)


def test_a_worker_that_the_kernel_kills_is_one_line():
    with pytest.raises(UserError, match=r"was killed .*out of memory.*--resume") as caught:
        list(parallel_map(signal.raise_signal, [signal.SIGKILL], workers=1))
    assert "\n" not in str(caught.value)


def test_a_worker_that_is_killed_between_two_results_does_not_interrupt_other_code():
    results = parallel_map(operator.call, itertools.repeat(os.getpid, 100), workers=1)
    os.kill(next(results), signal.SIGKILL)
    time.sleep(0.5)  # here torch's handler would raise its own exception if this process was the parent of the worker
    with pytest.raises(UserError, match="was killed"):
        list(results)


SCRIPT = """
import sys
from pathlib import Path
from PIL import Image
from fullrank.images import Decoding, Preprocess, as_images, iterate_batches, open_images
from fullrank.images.parallel import refuse_reimported_script

class Photos:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return Image.new("RGB", (8, 8))

refuse_reimported_script()
images = as_images(Photos()) if sys.argv[1] == "own" else open_images(sys.argv[1])["all"]
batches = iterate_batches(images, Preprocess(3, 8, (), ()), batch_size=2, decoding=Decoding(workers=1))
print(sum(len(batch.labels) for batch in batches))
"""


def run_script(tmp_path, argument="", script=SCRIPT):
    (tmp_path / "script.py").write_text(script)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, tmp_path / "script.py", argument]
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, env=environment)


def test_a_script_without_a_guard_may_start_workers(tmp_path, write):
    result = run_script(tmp_path, str(write("a.png", "b.png", "c.png")))
    assert (result.returncode, result.stdout) == (0, "3\n"), result.stderr


def test_a_script_whose_own_class_needs_a_guard_says_so(tmp_path):
    result = run_script(tmp_path, "own")
    assert result.returncode != 0
    assert "if __name__ == '__main__':" in result.stderr


def test_what_workers_cannot_receive_is_one_line():
    with pytest.raises(UserError, match=r"cannot be sent to worker processes.*data\.workers to 0"):
        next(parallel_map(lambda task: task, [1], workers=1))


UNFINISHED = """
import operator
from fullrank.images.parallel import parallel_map

results = parallel_map(operator.neg, range(100), workers=1)
next(results)
raise ValueError("an error of the user")
"""


def test_a_script_that_fails_while_workers_wait_ends(tmp_path):
    result = run_script(tmp_path, script=UNFINISHED)
    assert (result.returncode, result.stderr.splitlines()[-1]) == (1, "ValueError: an error of the user")
