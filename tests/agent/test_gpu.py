"""With a real GPU only: the agent finds it, a task sees what it was given and nothing else, and halves share one."""

from __future__ import annotations

import asyncio
import ctypes
import shlex
from pathlib import Path

import pytest

from fairlead.agent.spawner.devices import gpus
from tests.agent.plant import Plant, machine
from tests.agent.test_stories import SHORT, log_of, tell
from tests.agent.test_users import labels_of, node, run
from tests.people import People, needs_root, people

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


needs_gpu = pytest.mark.skipif(not gpus(), reason="no GPU on this machine")


@needs_gpu
def test_a_real_gpu_is_found_given_and_shared(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Plant(tmp_path / "journal", SHORT).at_work() as plant,
            machine(tmp_path / "agent", plant.url) as _,
        ):
            await plant.until(lambda partition: partition.nodes.name)
            known = await plant.read(lambda partition: partition.nodes.capacity_of(0))
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


@needs_gpu
@needs_root
def test_a_user_opens_the_gpus_that_the_task_was_given_and_no_others(tmp_path: Path) -> None:
    """Whatever the task sets in its environment."""
    look = "exec python3 -c " + shlex.quote(LOOK)
    every = "unset CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES; "
    files = [f"/dev/nvidia{minor}" for _, minor in gpus()]
    tries = "; ".join(f"(: < {file}) 2>/dev/null && echo opened" for file in files)

    async def story(two: People) -> None:
        async with node(two, tmp_path) as (plant, _):
            assert (await labels_of(plant))["gpus"] == "separate"
            for user in two.names:
                state, said = await run(plant, user, every + look, resources={"cpu": 1, "gpu": 1})
                assert state == "succeeded" and len(said.split()) == 1, said
                state, said = await run(plant, user, every + look)
                assert (state, said) == ("succeeded", "")
                assert (await run(plant, user, f"{tries}; true"))[1] == ""
                state, said = await run(plant, user, f"{tries}; true", resources={"cpu": 1, "gpu": 1})
                assert said == "opened\n"
            halves = [
                plant.submit(["/bin/sh", "-c", every + look], user=user, resources={"cpu": 1, "gpu": 0.5})
                for user in two.names
            ]
            for job in halves:
                assert await plant.over(await job) == "succeeded"

    with people("ann", "bob") as two:
        tell(lambda: story(two))
