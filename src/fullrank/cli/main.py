"""The command line: dispatch to a verb. Heavy modules are imported only when the verb is known, so that the help is fast."""

import importlib
import os
import sys
from collections.abc import Sequence

from fullrank.errors import Interrupted, ProcessFailed, UserError, pick

VERBS = {
    "pretrain": "learn a backbone from unlabelled images",
    "evaluate": "linear probes and kNN on the frozen backbone, compared with raw pixels and the untrained network",
    "spectrum": "eigenvalues of the embeddings, effective rank, condition number, entropy, collapsed dimensions",
    "embed": "write the embeddings of a set of images to Parquet",
    "export": "write the backbone as safetensors for timm, or as ONNX",
    "report": "write one self-contained HTML page for one or several runs",
    "check": "test whether your own objective meets the requirements: package.module:function",
    "reproduce": "the figures of the papers, each with its claims and whether they are reproduced",
    "recipes": "list the recipes, or print one",
}

HELP = """usage: fullrank VERB …

Self-supervised learning of images by joint embedding, with the spectrum of the embeddings.

{verbs}

SOURCE of images: digits (embedded), a path (folder or Parquet), folder:PATH, parquet:PATH, hf:NAME
MODEL: a run directory, RUN@STEP, timm:NAME, file:PATH

Try it:                fullrank pretrain digits
Your own photos:       fullrank pretrain path/to/folder
Help on a verb:        fullrank pretrain --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    0: success; 1: one of several processes failed; 2: a mistake that the user can fix; 128 + n: stopped by signal n.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, VERBS))
        print(HELP.format(verbs="\n".join(f"  {verb:{width}}  {summary}" for verb, summary in VERBS.items())), end="")
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"fullrank {version('fullrank')}")
        return 0
    try:
        pick(arguments[0], VERBS, "verb")
        verb = importlib.import_module(f"fullrank.cli.{arguments[0]}")
        verb.run(arguments[1:])
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
