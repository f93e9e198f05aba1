"""`fairlead shadow`: the past of another cluster beside what Fairlead would have done."""

from __future__ import annotations

import json
import os
import random
from datetime import datetime, timedelta
from pathlib import Path

from typer.testing import CliRunner

from fairlead.cli.main import app
from tests.sim.test_report import Page

BEGIN = datetime(2026, 10, 1)


def past(jobs: int, seed: int = 3) -> str:
    """Return the output of sacct of a machine with 8 CPUs that started one job after another, whatever fitted."""
    rng = random.Random(seed)
    lines = ["JobIDRaw|JobName|User|Account|Partition|Submit|Start|End|State|Timelimit|NNodes|NCPUS"]
    free_at, submit = 0, 0
    for number in range(1, jobs + 1):
        submit += rng.randint(0, 300)
        cpus, run = rng.choice([1, 1, 2, 8]), rng.randint(60, 600)
        start = max(free_at, submit)
        free_at = start + run
        user = rng.choice(["ann", "bob"])
        times = "|".join((BEGIN + timedelta(seconds=second)).isoformat() for second in (submit, start, free_at))
        lines.append(f"{number}|j|{user}|of-{user}|main|{times}|COMPLETED|00:10:00|1|{cpus}")
    return "\n".join(lines) + "\n"


def run(*words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["shadow", *words], env=env)
    return done.exit_code, done.output


def test_the_page_says_how_everybody_would_have_fared(tmp_path: Path) -> None:
    file, page, figures = tmp_path / "sacct.txt", tmp_path / "shadow.html", tmp_path / "shadow.json"
    file.write_text(past(120))
    code, output = run(str(file), "--nodes", "1x8", "--page", str(page), "--json", str(figures))
    assert code == 0, output
    read = Page(page.read_text())
    assert {"recorded", "easy", "defaults", "shares", "ann", "bob", "of-ann"} <= set(read.of("td") + read.of("th"))
    assert not read.addresses
    found = json.loads(figures.read_text())
    waits = {each["policy"]: each["mean_wait_s"] for each in found["runs"]}
    assert waits["easy"] < waits["recorded"], "jobs side by side wait less than one after another"
    users = {each["name"]: each for each in found["by_user"]}
    # What the users waited adds up to what all waited.
    for at, each in enumerate(found["runs"]):
        total = sum(user["jobs"] * user["mean_wait_s"][at] for user in users.values())
        assert abs(total - each["sum_wait_s"]) < 1
    assert found["predictions"]["asked"] > 0
    assert "predicted starts came within the interval" in output


def test_a_configuration_takes_the_place_of_the_built_in_policies(tmp_path: Path) -> None:
    file, config = tmp_path / "sacct.txt", tmp_path / "fairlead.yaml"
    file.write_text(past(30))
    config.write_text("backfill: easy\nqueues: {root: {of-ann: {share: 9}, of-bob: {share: 1}}}\n")
    code, output = run(
        str(file), "--config", str(config), "--page", str(tmp_path / "p.html"), "--predict", "0", "--json", "-"
    )
    assert code == 0, output
    found = json.loads(output)
    assert [each["policy"] for each in found["runs"]] == ["recorded", "easy", "yours"]
    assert set(found["runs"][2]["queues"]) == {"root.of-ann", "root.of-bob"}
    assert found["predictions"]["asked"] == 0


def test_the_slurm_of_this_machine_is_asked(tmp_path: Path) -> None:
    """The programs print what the real ones do; `bench` runs the real ones."""
    for name, text in (("sacct", past(20)), ("sinfo", "NODELIST|CPUS|MEMORY|GRES|PARTITION\nn1|8|1000|(null)|main*\n")):
        (tmp_path / f"{name}.out").write_text(text)
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "$0 $*" >> {tmp_path}/asked\ncat "$0.out"\n')
        program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    code, output = run("--live", "--since", "2d", "--page", str(tmp_path / "p.html"), "--predict", "0", env=env)
    assert code == 0, output
    asked = (tmp_path / "asked").read_text()
    assert "--starttime=now-172800seconds" in asked
    assert "--Node" in asked


def test_mistakes_are_refused_with_a_remedy(tmp_path: Path) -> None:
    file = tmp_path / "sacct.txt"
    file.write_text(past(3))
    for words, problem in (
        ((), "name the files"),
        ((str(file), "--live"), "not both"),
        ((str(file), "--since", "3d"), "--since is for --live"),
        ((str(file), "--page", str(tmp_path / "no" / "p.html")), "there is no folder"),
        (("--live",), "there is no sacct on this machine"),
    ):
        code, output = run(*words, env={"PATH": "/nowhere"})
        assert code != 0
        assert problem in " ".join(output.split()), output
    own = tmp_path / "own.csv"
    own.write_text("submit,duration\n0,5\n")
    code, output = run(str(own), "--nodes", "1x8", "--page", str(tmp_path / "p.html"))
    assert code == 1
    assert "1 jobs have no start time" in output
