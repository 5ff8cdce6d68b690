"""Dispatch to a verb. Nothing heavy is imported before a verb is known, so that the help is there at once."""

import importlib
import os
import sys
from collections.abc import Sequence

from fullrank.errors import Interrupted, UserError, WorkerDied, pick

VERBS = {
    "pretrain": "learn a backbone from unlabelled images",
    "evaluate": "linear probes and kNN on the frozen backbone, beside raw pixels and the untrained network",
    "spectrum": "eigenvalues of the embeddings, effective rank, condition number, entropy, collapsed dimensions",
    "embed": "write the embeddings of a set of images to Parquet",
    "export": "write the backbone as safetensors for timm, or as ONNX",
    "report": "one self-contained HTML page from one run or several",
    "check": "what every objective promises, looked at in one of your own: package.module:function",
    "reproduce": "the figures of the papers, each with what it claims and whether that is borne out",
    "recipes": "list the recipes, or print one",
}

HELP = """usage: fullrank VERB …

Self-supervised learning of images by joint embedding, seen through the spectrum of the embeddings.

{verbs}

SOURCE of images: digits (embedded), a path (folder or Parquet), folder:PATH, parquet:PATH, hf:NAME
MODEL: a run directory, RUN@STEP, timm:NAME, file:PATH

Try it:                fullrank pretrain digits
Your own photos:       fullrank pretrain path/to/folder
Help on a verb:        fullrank pretrain --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    0 done, 1 one of several processes died, 2 something the user can mend, 128 + n stopped by signal n.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, VERBS))
        print(HELP.format(verbs="\n".join(f"  {verb:{width}}  {what}" for verb, what in VERBS.items())), end="")
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
    except WorkerDied as death:
        print(*getattr(death, "__notes__", ()), f"fullrank: {death}", sep="\n", file=sys.stderr)
        return 1
    except Interrupted as stop:
        from fullrank.terminal import stderr  # after the dispatch: it brings rich

        stderr().print(f"fullrank: {stop}")  # by the first of the processes that stop together
        return 128 + stop.signum
    except SystemExit as stop:  # of `--help`
        return int(stop.code or 0)
    except KeyboardInterrupt:
        print("fullrank: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `fullrank … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0
