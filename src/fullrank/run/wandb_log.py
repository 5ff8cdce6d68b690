"""The log of a run at Weights & Biases: the rows of metrics.jsonl, the recipe as its configuration, and the alarms."""

import importlib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fullrank.errors import UserError, pick
from fullrank.files import read_json, write_json

# Arguments of `wandb.init`: a selection of `ARGUMENTS`.
WandbOptions = dict[str, Any]
ARGUMENTS: dict[str, None] = dict.fromkeys(("project", "name", "entity", "group", "job_type", "tags", "notes", "mode"))


def check_wandb(options: object) -> None:
    """Check that W&B can be used with these options (False: no W&B, True: the defaults), before a run begins.

    Raises:
        UserError: wandb is not installed, or an option is unknown.
    """
    if options is False:
        return
    if not isinstance(options, bool | dict):
        raise UserError(f"wandb is {options!r:.60}, expected True, False or a dict of {', '.join(ARGUMENTS)}")
    for name in options if isinstance(options, dict) else ():
        pick(name, ARGUMENTS, "option of wandb")
    import_wandb()


def import_wandb() -> Any:
    """Return the module wandb.

    Raises:
        UserError: wandb is not installed.
    """
    try:
        return importlib.import_module("wandb")
    except ImportError:
        raise UserError(
            "--wandb needs the package wandb, which is not installed; pip install 'fullrank[wandb]'"
        ) from None


class WandbLog:
    """One W&B run for each run directory; a resumed run continues it, in the same project and with the same name.

    Args:
        path: the run directory.
        options: arguments of `wandb.init`; True: the defaults, project "fullrank" and the name of the directory.
        config: the hyperparameters of the run, as JSON.
    """

    def __init__(self, path: Path, options: WandbOptions | bool, *, config: Mapping[str, Any]) -> None:
        wandb = import_wandb()
        file = path / "wandb" / "run.json"
        chosen = {"project": "fullrank", "name": path.resolve().name, "id": uuid.uuid4().hex[:8]}
        if file.exists():
            # Other entries of the file are ignored: a stranger's `settings` could name another server, which would
            # receive the user's key.
            chosen |= {name: value for name, value in read_json(file).items() if name in (*ARGUMENTS, "id")}
        chosen |= options if isinstance(options, dict) else {}
        file.parent.mkdir(exist_ok=True)
        write_json(file, chosen)
        self._run = wandb.init(**chosen, dir=str(path), resume="allow", config=dict(config))

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Log the numbers of one row."""
        self._run.log(dict(values), step=step)

    def alert(self, title: str, text: str, *, step: int) -> None:
        """Send an alert, which W&B forwards by mail or Slack if the user asked for it, and log its text at this
        step.
        """
        self._run.log({"alarm": f"{title}: {text}"}, step=step)
        self._run.alert(title=title, text=text, level="WARN")

    def finish(self) -> None:
        """Upload what is left."""
        self._run.finish()
