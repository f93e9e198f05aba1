"""With a real GPU only: the agent finds it, a task sees what it was given and nothing else, and halves share one."""

from __future__ import annotations

import asyncio
import ctypes
from pathlib import Path

import pytest

from tests.agent.plant import Plant, machine
from tests.agent.test_stories import SHORT, log_of, tell

# What a task sees: the identities of the devices that the driver shows to it.
LOOK = """
import ctypes, os, sys, time
cuda, count, gpu = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
if cuda.cuInit(0) == 0:
    cuda.cuDeviceGetCount(ctypes.byref(count))
for at in range(count.value):
    identity = (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGet(ctypes.byref(gpu), at)
    cuda.cuDeviceGetUuid(identity, gpu)
    print(bytes(identity).hex(), flush=True)
folder = sys.argv[1] if len(sys.argv) > 1 else ""
if folder:  # stay until both halves are there
    open(f"{folder}/half.{os.environ['FAIRLEAD_INDEX']}", "w").close()
    while len([name for name in os.listdir(folder) if name.startswith("half.")]) < 2:
        time.sleep(0.01)
"""


def devices() -> int:
    try:
        cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return 0
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


@pytest.mark.skipif(not Path("/proc/driver/nvidia/gpus").is_dir(), reason="no GPU on this machine")
def test_a_real_gpu_is_found_given_and_shared(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Plant(tmp_path / "journal", SHORT).at_work() as plant,
            machine(tmp_path / "agent", plant.url) as _,
        ):
            await plant.until(lambda p: p.nodes.name)
            known = await plant.read(lambda p: p.nodes.capacity_of(0))
            assert known["gpu"] == 1000 * devices() > 0
            one = await plant.submit(["python3", "-c", LOOK], resources={"cpu": 1, "gpu": 1})
            none = await plant.submit(["python3", "-c", LOOK], resources={"cpu": 1})
            halves = await plant.submit(
                ["python3", "-c", LOOK, str(tmp_path)], count=2, resources={"cpu": 1, "gpu": 0.5}
            )
            for job in (one, none, halves):
                assert await plant.over(job) == "succeeded"
            assert len((await log_of(plant, one)).split()) == 1
            assert (await log_of(plant, none)) == ""
            seen = await asyncio.gather(*(log_of(plant, halves, index=index) for index in range(2)))
            assert len(seen[0].split()) == 1
            assert seen[0] == seen[1]

    tell(story)
