"""`fairlead demo`: a short story that shows the scheduler's decisions.

All decisions come from a `World`; none are written down here. Each chapter is one method, in the order of the story.
The clock is virtual; the journal is a real SQLite file in a temporary directory.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap

from rich.console import Console
from rich.table import Table

from fairlead.journal import SqliteJournal
from fairlead.testing import World

CONFIG = {"queues": {"root": {"ci": {"limit": {"cpu": 6}}, "ml": {}}}}


def run() -> None:
    """Print the story on standard output, in colours on a terminal."""
    with TemporaryDirectory(prefix="fairlead-") as folder:
        path = Path(folder) / "journal"
        story = Story(path)
        try:
            story.a_cluster()
            story.an_array_under_a_limit()
            story.a_gang()
            story.parts_of_a_gpu()
            story.a_node_fails()
            story.a_restart()
            story.the_end()
        finally:
            story.world.journal.close()


class Story:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.console = Console(highlight=False, markup=False)
        self.world = World(CONFIG, journal=SqliteJournal(path))
        self.lint = self.train = self.notebooks = ""
        self.lost: tuple[str, int, str] = ("", 0, "")

    # -- the chapters --------------------------------------------------------------------------------------------

    def a_cluster(self) -> None:
        w = self.world
        w.nodes(3, prefix="n", cpu=8, memory="32Gi")
        w.node("g0", cpu=8, memory="64Gi", gpu=2, taints=["gpu"])
        w.cycle()
        self._chapter("A small cluster, on a virtual clock")
        self._say("n0, n1, n2: 8 CPUs each. g0: 8 CPUs and 2 GPUs, only for tasks that tolerate the taint gpu.")
        self._say("Queue root.ci may use 6 CPUs at most. Queue root.ml has no limit.")

    def an_array_under_a_limit(self) -> None:
        w = self.world
        self.lint = w.submit(
            name="lint",
            queue="root.ci",
            user="bob",
            stages=[{"name": "check", "count": 20, "min": 1, "resources": {"cpu": 1}, "duration": "60s"}],
        )
        self._settle()
        self._chapter("An array: 20 tasks of 1 CPU that may start one by one")
        self._say(f"{len(w.placements(self.lint))} tasks run; root.ci uses {w.usage('root.ci')['cpu']} CPUs.")
        self._why(self.lint)

    def a_gang(self) -> None:
        w = self.world
        self.train = w.submit(
            name="train",
            queue="root.ml",
            user="ann",
            stages=[{"name": "worker", "count": 6, "resources": {"cpu": 4}, "duration": "10min"}],
        )
        self._settle()
        self._chapter("A gang: 6 workers of 4 CPUs, all together or not at all")
        self._say(f"{len(w.placements(self.train))} workers are placed: part of a gang is of no use.")
        self._why(self.train)
        w.node("n3", cpu=8, memory="32Gi")
        w.cycle()
        self._say(f"Node n3 joins, and after one cycle {len(w.placements(self.train))} workers are placed.")
        self._where(self.train)

    def parts_of_a_gpu(self) -> None:
        w = self.world
        stage = {"name": "main", "count": 3, "min": 1, "tolerations": ["gpu"], "duration": "10min"}
        self.notebooks = w.submit(
            name="notebooks", queue="root.ml", user="eve", stages=[{**stage, "resources": {"cpu": 1, "gpu": 0.5}}]
        )
        self._settle()
        self._chapter("Parts of a GPU: 3 notebooks with half a device each")
        for (name, index), node in w.placements(self.notebooks).items():
            devices = ", ".join(str(device) for device in w.task(self.notebooks, name, index).devices)
            self._say(f"{name}[{index}] on {node}, device {devices}")

    def a_node_fails(self) -> None:
        w = self.world
        (name, index), node = list(w.placements(self.train).items())[-1]
        before = w.task(self.train, name, index)
        w.advance(30)
        w.fail_node(node)
        self._settle()
        self._chapter(f"Node {node} fails at {w.now // 1_000_000} s")
        after = w.task(self.train, name, index)
        self._say(f"{name}[{index}] was {before.state} as attempt {before.attempt}; now it is {after.state}.")
        self._why(self.train)
        self.lost = (name, index, node)

    def a_restart(self) -> None:
        w = self.world
        before = w.dump()
        # Only the file remains: the connection and all state in memory are thrown away.
        w.journal.close()
        w.journal = SqliteJournal(self.path)
        w.restart()
        self._chapter("The control plane is thrown away and another one reads the journal")
        same = "equal to the byte" if w.dump() == before else "DIFFERENT"
        self._say(f"The recovered state is {same}.")
        name, index, node = self.lost
        w.return_node(node)
        self._settle()
        task = w.task(self.train, name, index)
        self._say(f"Node {node} returns: {name}[{index}] is {task.state} on {task.node} as attempt {task.attempt}.")
        w.answers()
        w.report(self.train, name, index, attempt=1, state="running", node=node)
        w.cycle()
        self._say("Its agent then repeats an old report, of attempt 1:")
        for answer in w.answers():
            self._quote(getattr(answer, "note", "") or str(answer))

    def the_end(self) -> None:
        w = self.world
        w.advance(1800)
        self._chapter(f"Half an hour later, at {w.now // 1_000_000} s")
        table = Table("job", "queue", "state", "tasks", "ended at", box=None, pad_edge=False, header_style="dim")
        for job in (self.lint, self.train, self.notebooks):
            view = w.job(job)
            tasks = ", ".join(f"{count} {how}" for stage in view.stages for how, count in stage.ended.items())
            table.add_row(job, view.queue, view.state, tasks, "-" if view.ended_at is None else f"{view.ended_at:g} s")
        self.console.print(table)
        self.console.print()
        self.console.print("Read on: docs/tour.md for the same from Python, docs/architecture.md for how it works,")
        self.console.print("examples/ for more stories like this one.")

    # -- printing ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Run a cycle, and one more in which the agents' acknowledgements arrive."""
        self.world.cycle()
        self.world.cycle()

    def _chapter(self, title: str) -> None:
        if self.lint:
            self.console.print()
        self.console.print(title, style="bold cyan", soft_wrap=True)

    def _say(self, text: str) -> None:
        self.console.print(f"  {text}", soft_wrap=True)

    def _quote(self, text: str) -> None:
        for line in wrap(text, 110, initial_indent="  > ", subsequent_indent="    "):
            self.console.print(line, style="yellow", soft_wrap=True)

    def _why(self, job: str) -> None:
        for waiting in self.world.explain(job):
            self._quote(str(waiting))

    def _where(self, job: str) -> None:
        by_node: dict[str, list[str]] = {}
        for (_, index), node in self.world.placements(job).items():
            by_node.setdefault(node, []).append(str(index))
        self._say("; ".join(f"{node}: workers {', '.join(tasks)}" for node, tasks in by_node.items()))
