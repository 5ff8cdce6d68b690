"""The environment of a run: versions, hardware, command. User name and host name are not stored; `~` replaces the home
folder.
"""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fullrank.distributed import world_size
from fullrank.recipes import Recipe, code_names

PACKAGES = ("fullrank", "torch", "torchvision", "lightning", "timm", "datasets", "numpy")


def describe_environment(recipe: Recipe) -> dict[str, Any]:
    """Return the content of environment.json at the start of a run.

    >>> sorted(describe_environment(Recipe()))[:4]
    ['code', 'command', 'commit', 'cpu_seconds']
    """
    return {
        **platform_info(),
        "code": {name: commit(file) for name in code_names(recipe) if (file := source_file(name))},
        "processes": world_size(),
        "seed": recipe.seed,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "duration_seconds": 0.0,
        "cpu_seconds": 0.0,
    }


def platform_info() -> dict[str, Any]:
    """Return versions, hardware, command and commit."""
    return {
        **{name: installed_version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "hardware": hardware(),
        "command": _without_home(shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])),
        "commit": commit(),
    }


def installed_version(package: str) -> str | None:
    """Return the version of a package, None if it is not installed.

    >>> installed_version("torch") == version("torch"), installed_version("no-such-package")
    (True, None)
    """
    try:
        return version(package)
    except PackageNotFoundError:  # a checkout on the import path, or a package that the run does not need
        return None


def _without_home(command: str) -> str:
    try:
        return command.replace(f"{Path.home()}/", "~/")
    except RuntimeError:  # the user has no home folder, as in some containers
        return command


def rounding(recipe: Recipe) -> dict[str, Any]:
    """Return what decides the last bits of the weights: a run continues bit for bit if nothing of it has changed.

    >>> sorted(rounding(Recipe()))
    ['accelerator', 'channels_last', 'compile', 'cores', 'cpu', 'gpus', 'micro_batch', 'processes', 'threads', 'torch']
    """
    settings = {
        name: getattr(recipe.machine, name) for name in ("accelerator", "micro_batch", "compile", "channels_last")
    }
    return {"torch": version("torch"), "processes": world_size()} | settings | hardware()


def hardware() -> dict[str, Any]:
    """Return the processor, its cores, the threads in use, and the GPUs."""
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def processor() -> str:
    """Return the name of the processor if the system provides it, or else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def source_file(name: str) -> Path | None:
    """Return the file of an imported function `package.module:function`, None if it is not imported or has no file."""
    file = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
    return Path(file) if file else None


def source_digests(recipe: Recipe) -> dict[str, str]:
    """Return name → first digits of the SHA-256 of the source file, for the functions of the user that a recipe names.

    >>> source_digests(Recipe())
    {}
    """
    files = {name: source_file(name) for name in code_names(recipe)}
    return {name: hashlib.sha256(file.read_bytes()).hexdigest()[:12] for name, file in files.items() if file}


def commit(file: Path | None = None) -> str | None:
    """Return the commit of the checkout that holds a file, with "+changes" if its folder was modified; None without a
    checkout.

    Args:
        file: a file; by default a file of this package.
    """
    file = file or Path(__file__)
    git = ["git", "-C", str(file.parent)]
    try:
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", file.name], capture_output=True, check=False)
        if tracked.returncode:
            return None
        head = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", "."], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+changes" if changed else "")
