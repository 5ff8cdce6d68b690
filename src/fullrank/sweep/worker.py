"""The process of one cell. It is forked from a server that has imported torch already, because that import takes
seconds.
"""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from fullrank.errors import Interrupted, UserError
from fullrank.sweep.cell import Cell
from fullrank.sweep.folder import cell_lock, log_path
from fullrank.sweep.run_cell import run_cell


@dataclass(frozen=True)
class Outcome:
    """How the process of a cell ended."""

    status: Literal["done", "busy", "failed", "interrupted"]
    """busy: another process has locked the cell."""
    message: str = ""


def work(cell: Cell, folder: Path, threads: int, gpus: Sequence[str], connection: Any) -> None:
    """Run a cell and send its `Outcome`. All output goes to the log of the cell.

    Args:
        cell: the cell.
        folder: the folder of the sweep.
        threads: number of CPU threads.
        gpus: the GPUs of the process, as in CUDA_VISIBLE_DEVICES; empty on a CPU.
        connection: where the outcome is sent.
    """
    os.setsid()  # the terminal's Ctrl-C reaches only the parent, which passes it on once
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    _redirect_output(log_path(folder, cell.name))
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)

    import torch

    torch.set_num_threads(threads)
    console = Console(file=sys.stderr, markup=False, emoji=False, highlight=False, soft_wrap=True, width=140)
    console.print(f"cell {cell.name}, process {os.getpid()}")
    try:
        with cell_lock(folder, cell.name, wait=0.5) as acquired:
            if acquired:
                run_cell(cell, folder, console=console)
        outcome = Outcome("done" if acquired else "busy")
    except UserError as error:
        outcome = Outcome("failed", str(error))
    except Interrupted as stop:
        outcome = Outcome("interrupted", str(stop))
    except BaseException as error:
        traceback.print_exc()
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        outcome = Outcome("failed", f"{reason[:300]}; the traceback is in {log_path(folder, cell.name)}")
    console.print(f"{outcome.status} {outcome.message}".strip())
    connection.send(outcome)


def _redirect_output(path: Path) -> None:
    """Append standard output and standard error of this process to a file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    for name in ("stdout", "stderr"):
        setattr(sys, name, open(1 if name == "stdout" else 2, "w", buffering=1, encoding="utf-8", closefd=False))  # noqa: SIM115


def _stop_with_parent() -> None:
    """Wait until the parent has ended, then stop this process as by SIGTERM: it writes a checkpoint."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent process"
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(300.0)
    os._exit(1)
