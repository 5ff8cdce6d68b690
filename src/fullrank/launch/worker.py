"""One process of a run on several: `python -m fullrank.launch.worker FOLDER`, which `fullrank.launch.launcher` starts."""

import os
import signal
import sys
import threading
import traceback
from pathlib import Path


def main(folder: Path) -> int:
    """Carry out the task in `folder`, report how that ended, and return the exit status: 0 where the others may go on by themselves."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # before what takes seconds to import: who is told to go then leaves no traceback
    threading.Thread(target=end_with_parent, daemon=True).start()

    from rich.console import Console

    from fullrank.errors import Interrupted, UserError
    from fullrank.launch.messages import Mailbox, Outcome
    from fullrank.pretraining import train_on_rank
    from fullrank.recipes import from_dict
    from fullrank.terminal import stderr

    office, rank = Mailbox(folder), int(os.environ["RANK"])
    try:
        task = office.task()
        sys.argv = task.argv
        train_on_rank(
            from_dict(task.recipe),
            Path(task.out) if task.out else None,
            resume=task.resume,
            overwrite=task.overwrite,
            wandb=task.wandb,
            console=Console(quiet=True) if task.quiet else stderr(),
            announce=office.announce,
        )
    except UserError as error:
        office.report(rank, Outcome("refused", str(error)))
        return 2
    except Interrupted as stop:
        office.report(rank, Outcome("stopped", str(stop), stop.signum))
        return 0
    except BaseException:
        office.report(rank, Outcome("failed", traceback.format_exc()))
        return 1
    office.report(rank, Outcome("done"))
    return 0


def end_with_parent() -> None:
    """Stop, with a checkpoint, when the parent is gone: it holds the other end of standard input, and never writes to it."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
