"""A member of a gang that uses `torch.distributed`, for tests.

    python torch_reduce.py FOLDER [elastic]

The member adds up the ranks with the others, and notes its process in FOLDER after the first round. In the first
generation it goes on without end, later it ends after three rounds. An elastic one goes on until a file `go` is there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]

GENERATION = int(os.environ["FAIRLEAD_GENERATION"])


def note(folder: Path, name: str, process: int) -> None:
    (folder / f"new.{name}").write_text(str(process))
    (folder / f"new.{name}").rename(folder / name)


def main(folder: Path, elastic: bool) -> None:
    dist.init_process_group("gloo")  # env://
    rank, size, rounds = dist.get_rank(), dist.get_world_size(), 0
    while True:
        total = torch.tensor([rank])
        dist.all_reduce(total)
        assert total.item() == size * (size - 1) // 2
        rounds += 1
        if rounds == 1:
            # Of an elastic member, torchrun is killed, as the loss of a whole task.
            index = os.environ["FAIRLEAD_INDEX"]
            note(folder, f"{GENERATION}.{index}", os.getppid() if elastic else os.getpid())
        ready = torch.tensor([(folder / "go").exists() if elastic else GENERATION > 1 and rounds >= 3], dtype=torch.int)
        dist.all_reduce(ready, dist.ReduceOp.MIN)
        if ready.item():
            break
        time.sleep(0.05)
    print(f"rank {rank} of {size} in generation {GENERATION}: {total.item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), "elastic" in sys.argv)
