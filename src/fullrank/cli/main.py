"""Run a command: what a command needs is imported when it is asked for, so that the help is instant.

usage: fullrank COMMAND …

Self-supervised learning of images by joint embedding, with the spectrum of the embeddings.

{commands}

SOURCE of images: digits, a path (folder, Parquet, CSV of paths, tar shards), folder:PATH, parquet:PATH, hf:NAME
MODEL: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME, file:PATH

Try it:                fullrank pretrain digits
Use your photos:       fullrank pretrain path/to/folder
Help on a command:     fullrank pretrain --help
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import entry_points, version

from fullrank.errors import Interrupted, ProcessFailed, UserError, pick, printable

COMMANDS = {
    "pretrain": "pretrain a backbone on unlabelled images",
    "sweep": "train a grid of settings and seeds: one table, one figure and one report",
    "evaluate": "score the frozen backbone by linear probes and kNN, beside raw pixels and the untrained network",
    "finetune": "train all weights with labels, beside random initial weights, and say whether pretraining helped",
    "choose": "rank models on images without labels, with intervals; with labels, see whether the order holds",
    "spectrum": "measure the eigenvalues of the embeddings: effective rank, condition number, collapsed dimensions",
    "embed": "write the embeddings of a set of images to Parquet, CSV or NumPy",
    "neighbours": "find nearest neighbours, near-duplicates, outliers and likely label errors of a set of images",
    "export": "write the backbone as safetensors for timm, as ONNX, or as a folder for the Hugging Face hub",
    "report": "write one self-contained HTML page for one or several runs",
    "check": "test whether an objective meets the requirements; yours is package.module:function",
    "reproduce": "compute the figures of the papers, and check their claims (of the package fullrank_papers)",
    "recipes": "list the recipes, or print one",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    0: success; 1: one of several processes failed; 2: a mistake that the user can fix; 128 + n: stopped by signal n.
    """
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # for its processes: a module in the working directory hides none
    try:
        _run(*(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except UserError as error:
        return _say(error, 2)
    except ProcessFailed as failure:
        print(*getattr(failure, "__notes__", ()), sep="\n", file=sys.stderr)
        return _say(failure, 1)
    except Interrupted as stop:
        first = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
        return _say(stop, 128 + stop.signum) if first else 128 + stop.signum
    except SystemExit as stop:  # from `--help`, or from a user's function
        return _say(stop.code, 1) if isinstance(stop.code, str) else stop.code or 0
    except KeyboardInterrupt:
        return _say("stopped", 130)
    except BrokenPipeError:  # the reader of `fullrank … | head` has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _run(command: str = "--help", *arguments: str) -> None:
    if command in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        commands = "\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items())
        print(usage(__doc__).format(commands=commands))
    elif command == "--version":
        print(f"fullrank {version('fullrank')}")
    else:
        pick(command, COMMANDS, "command")
        check_arguments(arguments, command=command)
        find_command(command)(list(arguments))


def check_arguments(arguments: Sequence[str], *, command: str) -> None:
    """Check that no value is empty or has a zero byte: an empty path would be the working directory.

    Raises:
        UserError: one is.
    """
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if not argument or "\0" in argument or (equals and not value and flag.startswith("--")):
            where = repr(flag) if flag.startswith("--") else f"argument {i + 1}"
            remedy = f"is a variable of the shell not set? See fullrank {command} --help"
            raise UserError(f"{where} is empty or has a zero byte, expected a value; {remedy}")


def usage(doc: str | None) -> str:
    r"""Return the usage of a command, the docstring of its module after the first paragraph.

    >>> usage("The command.\n\nusage: command\n")
    'usage: command'
    """
    return (doc or "").partition("\n\n")[2].rstrip()


def find_command(name: str) -> Callable[[list[str]], None]:
    """Return a command as a function of the words after it: of this package, or of an entry point in
    fullrank.commands.
    """
    for entry in entry_points(group="fullrank.commands", name=name):
        return entry.load()
    if name in ("pretrain", "sweep", "check"):  # their first word decides which flags there are
        return importlib.import_module(f"fullrank.cli.{name}").run
    from fullrank.cli import commands, flags

    return partial(flags.call, getattr(commands, name), command=name)


def _say(message: object, status: int) -> int:
    print(f"fullrank: {printable(str(message))}", file=sys.stderr)
    return status
