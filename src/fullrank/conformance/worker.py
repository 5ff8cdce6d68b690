"""One process of a group: `python -m fullrank.conformance.worker FOLDER RANK` does FOLDER/task.pkl and writes FOLDER/RANK.pkl."""

import pickle
import sys
from pathlib import Path

import torch

from fullrank.conformance.share import run

if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    found = run(pickle.loads((folder / "task.pkl").read_bytes()), folder, rank)
    (folder / f"{rank}.pkl").write_bytes(pickle.dumps(found))
