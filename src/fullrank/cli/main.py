"""Run a command. Heavy modules are imported only when the command is known, so that the help is fast."""

import importlib
import os
import sys
from collections.abc import Sequence

from fullrank.errors import Interrupted, ProcessFailed, UserError, pick

COMMANDS = {
    "pretrain": "pretrain a backbone on unlabelled images",
    "evaluate": "score the frozen backbone by linear probes and kNN, compared with raw pixels and the untrained network",
    "spectrum": "measure eigenvalues of the embeddings, effective rank, condition number, entropy, collapsed dimensions",
    "embed": "write the embeddings of a set of images to Parquet",
    "export": "write the backbone as safetensors for timm, or as ONNX",
    "report": "write one self-contained HTML page for one or several runs",
    "check": "test whether an objective meets the requirements; yours is package.module:function",
    "reproduce": "compute the figures of the papers, and check their claims",
    "recipes": "list the recipes, or print one",
}

HELP = """usage: fullrank COMMAND …

Self-supervised learning of images by joint embedding, with the spectrum of the embeddings.

{commands}

SOURCE of images: digits (embedded), a path (folder or Parquet), folder:PATH, parquet:PATH, hf:NAME
MODEL: a run directory, RUN@STEP, timm:NAME, file:PATH

Try it:                fullrank pretrain digits
Use your photos:       fullrank pretrain path/to/folder
Help on a command:     fullrank pretrain --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    0: success; 1: one of several processes failed; 2: a mistake that the user can fix; 128 + n: stopped by signal n.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        print(HELP.format(commands="\n".join(f"  {command:{width}}  {summary}" for command, summary in COMMANDS.items())), end="")
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"fullrank {version('fullrank')}")
        return 0
    try:
        pick(arguments[0], COMMANDS, "command")
        importlib.import_module(f"fullrank.cli.{arguments[0]}").run(arguments[1:])
    except UserError as error:
        print(f"fullrank: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 2
    except ProcessFailed as failure:
        print(*getattr(failure, "__notes__", ()), f"fullrank: {failure}", sep="\n", file=sys.stderr)
        return 1
    except Interrupted as stop:
        from fullrank.terminal import stderr  # not at the top: it imports rich

        stderr().print(f"fullrank: {stop}")  # only the first process prints
        return 128 + stop.signum
    except SystemExit as stop:  # from `--help`
        return int(stop.code or 0)
    except KeyboardInterrupt:
        print("fullrank: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `fullrank … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0
