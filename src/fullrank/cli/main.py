"""Run a command. A command is imported when it is known, and heavy modules when its arguments are checked, so that an
answer is fast.
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from fullrank.cli.heavy import heavy_imports
from fullrank.errors import Interrupted, ProcessFailed, UserError, pick, printable
from fullrank.terminal import is_rank_zero, lasting_streams

COMMANDS = {
    "pretrain": "pretrain a backbone on unlabelled images",
    "sweep": "train a grid of settings and seeds: one table, one figure and one report",
    "evaluate": "score the frozen backbone by linear probes and kNN, compared with raw pixels and the untrained network",
    "finetune": "train all weights with labels, beside the same network from random weights, and say whether pretraining helped",
    "choose": "rank models on images without labels, with intervals; with labels, see whether the order holds",
    "spectrum": "measure eigenvalues of the embeddings, effective rank, condition number, entropy, collapsed dimensions",
    "embed": "write the embeddings of a set of images to Parquet, CSV or NumPy",
    "neighbours": "find nearest neighbours, near-duplicates, outliers and doubtful labels of a set of images; page and Parquet",
    "export": "write the backbone as safetensors for timm, as ONNX, or as a folder for the Hugging Face hub",
    "report": "write one self-contained HTML page for one or several runs",
    "check": "test whether an objective meets the requirements; yours is package.module:function",
    "reproduce": "compute the figures of the papers, and check their claims (of the package fullrank_papers)",
    "recipes": "list the recipes, or print one",
}

HELP = """usage: fullrank COMMAND …

Self-supervised learning of images by joint embedding, with the spectrum of the embeddings.

{commands}

SOURCE of images: digits (embedded), a path (folder, Parquet, CSV of paths, tar shards), folder:PATH, parquet:PATH, hf:NAME
MODEL: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME, file:PATH

Try it:                fullrank pretrain digits
Use your photos:       fullrank pretrain path/to/folder
Help on a command:     fullrank pretrain --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    0: success; 1: one of several processes failed; 2: a mistake that the user can fix; 128 + n: stopped by signal n.
    """
    os.environ.setdefault(
        "PYTHONSAFEPATH", "1"
    )  # for its processes: a module in the working directory replaces none of Python's
    with lasting_streams():
        return _main(list(sys.argv[1:] if argv is None else argv))


def _main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        print(
            HELP.format(commands="\n".join(f"  {command:{width}}  {summary}" for command, summary in COMMANDS.items())),
            end="",
        )
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"fullrank {version('fullrank')}")
        return 0
    try:
        pick(arguments[0], COMMANDS, "command")
        with heavy_imports():
            run = find_command(arguments[0])
        run(arguments[1:])
    except UserError as error:
        print_message(error)
        return 2
    except ProcessFailed as failure:
        print(*getattr(failure, "__notes__", ()), sep="\n", file=sys.stderr)
        print_message(failure)
        return 1
    except Interrupted as stop:
        if is_rank_zero():
            print_message(stop)
        return 128 + stop.signum
    except SystemExit as stop:  # from `--help`, or from a user's function
        if isinstance(stop.code, str):
            print_message(stop.code)
            return 1
        return stop.code or 0
    except KeyboardInterrupt:
        print_message("stopped")
        return 130
    return 0


def find_command(name: str) -> Callable[[list[str]], None]:
    """Return the function of a command: of this package, or of a package with an entry point in the group
    fullrank.commands.
    """
    for entry in entry_points(group="fullrank.commands", name=name):
        return entry.load()
    return importlib.import_module(f"fullrank.cli.{name}").run


def print_message(message: object) -> None:
    """Print a message as one line to standard error."""
    print(f"fullrank: {printable(str(message))}", file=sys.stderr)
