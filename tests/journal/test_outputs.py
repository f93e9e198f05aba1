"""Output on the server: found by its user only, whole or not at all, limited by age and size; in a folder and in S3."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import time
from typing import Any

import msgspec
import pytest

from fairlead.core.state import Partition
from fairlead.history.outputs import Incoming, OutputStore, _share
from fairlead.history.recorder import HistoryRecorder, ResultRow
from fairlead.history.s3 import ObjectStore, Unusable
from fairlead.history.store import History
from fairlead.history.stores import INCOMING, FolderStore, Store
from fairlead.server.failure import Failed
from fairlead.server.output_collection import source_of
from fairlead.server.start_options import ServerOptions
from fairlead.server.storage import output_place
from fairlead.testing import World
from fairlead.wire.agent_messages import MAX_OUTPUT, Collected, LogRequest, Output, OutputPart, Tasks
from tests.s3 import S3, s3_server

PARTITION = "default"
KEY = LogRequest(0, 250, "main", 7, 1, "out", user="ann")
TASKS = Tasks("job", 250, "main", 1, (0, 20))
LIMITS = (3, 1000)

Rows = list[tuple[ResultRow, bool]]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as found:
        yield found


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "folder":
        return FolderStore(tmp_path / "outputs")
    found: S3 = request.getfixturevalue("s3")
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return ObjectStore(f"s3://{found.bucket}/{tmp_path.name}", tmp_path / "incoming", found.url)


def write(store: Store, *pieces: Output, user: str = "ann", attempt: int = 1) -> OutputStore:
    """Receive logs."""
    outputs = OutputStore(store)
    tasks = msgspec.structs.replace(TASKS, attempt=attempt)
    incoming = Incoming(outputs, PARTITION, user, tasks, LIMITS, lambda *row: None, only_results=False)
    incoming.write(OutputPart(0, pieces))
    incoming.finish()
    incoming.close()
    return outputs


def log(offset: int, data: bytes, index: int = 7) -> Output:
    return Output(index, "out", offset, data)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_log_is_written_in_pieces_and_read(store: Store) -> None:
    outputs = write(store, log(0, b"hello "), log(6, b"world"))
    assert outputs.size(PARTITION, KEY) == 11
    assert (outputs.read(PARTITION, KEY, 6, 3), outputs.read(PARTITION, KEY, 11, 3)) == (b"wor", b"")
    assert [file.key for file in store.all()] == ["default/ann/2.0/250.main.7.1.out"]
    assert list(store.incoming.iterdir()) == []


def test_files_are_for_the_server_alone(tmp_path: Path) -> None:
    write(FolderStore(tmp_path), log(0, b"hello"))
    (path,) = files(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("field", [("user", "bob"), ("attempt", 2), ("stream", "err")])
def test_no_other_key_finds_it(store: Store, field: tuple[str, object]) -> None:
    outputs = write(store, log(0, b"hello"))
    other = msgspec.structs.replace(KEY, **dict([field]))
    assert outputs.size(PARTITION, other) is None and outputs.read(PARTITION, other, 0, 10) == b""


def test_odd_names_stay_below_the_folder(tmp_path: Path) -> None:
    for user in ("../../x", "..", "a/../../../b"):
        write(FolderStore(tmp_path / "outputs"), log(0, b"hello"), user=user)
    assert len(files(tmp_path / "outputs" / "default")) == 3
    assert [path.parts[: len(tmp_path.parts) + 1] for path in files(tmp_path)] == [(tmp_path / "outputs").parts] * 3


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    outputs = write(FolderStore(tmp_path / "outputs"), log(0, b"hello"))
    (path,) = files(tmp_path)
    (tmp_path / "elsewhere").write_text("secret")
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert outputs.read(PARTITION, KEY, 0, 10) == b""
    write(FolderStore(tmp_path / "outputs"), log(0, b"hello"))
    assert outputs.read(PARTITION, KEY, 0, 10) == b"hello" and (tmp_path / "elsewhere").read_text() == "secret"


def test_an_offset_of_a_node_cannot_make_a_huge_file(tmp_path: Path) -> None:
    write(FolderStore(tmp_path), log(MAX_OUTPUT, b"x"), log(2**53, b"x"))
    assert files(tmp_path) == []


def test_the_oldest_are_removed_by_age_and_by_size(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    keys = [msgspec.structs.replace(KEY, index=index) for index in range(5)]
    write(store, *(log(0, b"x" * 300, index) for index in range(5)))
    for ago, path in zip((7200, 300, 200, 100, 0), files(tmp_path), strict=False):
        os.utime(path, (0, time() - ago))
    outputs = OutputStore(store, size=1_000, age=3600.0)
    outputs.shrink()
    assert [outputs.size(PARTITION, key) for key in keys] == [None, None, 300, 300, 300]
    OutputStore(store, size=1_000, age=-1.0).shrink()
    assert files(tmp_path) == []
    OutputStore(store).shrink()
    assert list((tmp_path / "default/ann").iterdir()) == []


def test_the_files_of_one_user_do_not_push_out_those_of_others(tmp_path: Path) -> None:
    """17 sparse files of 1 GiB removed the results of everybody."""
    store = FolderStore(tmp_path)
    times = {"ann": 400, "bob": 300, "eve": 0}
    for user, ago in times.items():
        for name in range(2 if user != "eve" else 20):
            path = tmp_path / "default" / user / "0.0" / f"1.main.{name}.1.out"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.truncate(100 if user != "eve" else 1 << 30)
            os.utime(path, (0, time() - ago - name))
    OutputStore(store, size=16 << 30).shrink()
    assert [len(list((tmp_path / "default" / user / "0.0").iterdir())) for user in times] == [2, 2, 15]


@pytest.mark.parametrize(
    ("used", "size", "expected"),
    [([], 10, 10), ([5], 10, 5), ([20], 10, 10), ([1, 2, 90], 30, 27), ([40, 40, 40], 30, 10), ([1, 40, 40], 31, 15)],
)
def test_each_user_has_a_share_and_what_others_leave(used: list[int], size: int, expected: int) -> None:
    assert _share(used, size) == expected


def test_objects_are_removed_too(store: Store) -> None:
    outputs = write(store, *(log(0, b"x" * 300, index) for index in range(5)))
    limited = OutputStore(store, size=700)
    limited.shrink()
    assert sum(file.size for file in store.all()) == 600
    OutputStore(store, age=-1.0).shrink()
    assert list(store.all()) == [] and outputs.size(PARTITION, KEY) is None


# -- result files --------------------------------------------------------------------------------------------------


def receive(store: Store, *parts: OutputPart) -> tuple[OutputStore, Rows, list[tuple[int, ...]]]:
    """Receive result files: the store, the recorded rows, and the tasks that each part has completed."""
    outputs, rows = OutputStore(store), Rows()

    def record(partition: str, number: int, found: list[ResultRow], replace: bool) -> None:
        assert (partition, number) == (PARTITION, 250)
        rows.extend((row, replace) for row in found)

    tasks = msgspec.structs.replace(TASKS, indices=(0, 1))
    incoming = Incoming(outputs, PARTITION, "ann", tasks, LIMITS, record, only_results=True)
    stored = [incoming.write(part) for part in parts]
    incoming.finish()
    incoming.close()
    return outputs, rows, stored


def piece(name: str, data: bytes, offset: int = 0, index: int = 0) -> Output:
    return Output(index, "file", offset, data, name)


NAMES = ("out/a b.csv", "50%", "x#y?*[1]", "ü/ñ")


def test_result_files_keep_their_names(store: Store) -> None:
    parts = [OutputPart(0, (piece(name, b"ab"), piece(name, b"cd", 2))) for name in NAMES[:3]]
    whole = Collected(0, (*((name, 4) for name in NAMES[:3]),), "a warning")
    outputs, rows, stored = receive(store, *parts, OutputPart(0, (), True, (whole,)))
    ((row, replace),) = rows
    assert (row.files, row.warning, replace) == (whole.files, "a warning", True) and stored[-1] == (0,)
    for name in NAMES[:3]:
        assert outputs.result_size(PARTITION, "ann", 250, row, name) == 4
        assert outputs.read_result(PARTITION, "ann", 250, row, name, 1, 2) == b"bc"
        assert outputs.result_size(PARTITION, "bob", 250, row, name) is None
    assert sorted(file.key for file in store.all())[-1] == f"default/ann/2.0/250.main.0.1.results/{NAMES[2]}"


def test_an_empty_file_is_a_file(store: Store) -> None:
    outputs, rows, _ = receive(store, OutputPart(0, (), True, (Collected(0, ((NAMES[3], 0),)),)))
    assert outputs.result_size(PARTITION, "ann", 250, rows[0][0], NAMES[3]) == 0


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/x", "a/../../x", "a//b", "./a", "", "a\nb", "a\x1b[2J", "x" * 256, "a/" * 400 + "a", "\udcff"],
)
def test_a_node_cannot_choose_another_place(tmp_path: Path, name: str) -> None:
    store = FolderStore(tmp_path / "outputs")
    part = OutputPart(0, (piece(name, b"x"),), True, (Collected(0, ((name, 1),)),))
    _, rows, _ = receive(store, part)
    assert rows[0][0].files == () and "was refused" in rows[0][0].warning
    assert files(tmp_path) == []


def test_a_node_cannot_exceed_the_limits_or_send_other_tasks(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    pieces = (*(piece(f"f{at}", b"x" * 300) for at in range(5)), piece("f0", b"y", 2**40), piece("z", b"x", index=9))
    sizes = (*((f"f{at}", 300) for at in range(5)), ("none", 3))
    _, rows, stored = receive(store, OutputPart(0, pieces, True, (Collected(0, sizes), Collected(9, (("z", 1),)))))
    assert stored == [(0,)] and [name for name, _ in rows[0][0].files] == ["f0", "f1", "f2"]
    assert rows[0][0].warning.count("was refused") == 3
    assert len(files(tmp_path)) == 3


def test_announced_files_that_do_not_come_are_noted(tmp_path: Path) -> None:
    _, rows, _ = receive(FolderStore(tmp_path), OutputPart(0, (piece("a", b"x"),), True))
    assert [(row.files, "no longer on its node" in row.warning, replace) for row, replace in rows] == [
        ((), True, False)
    ]
    assert files(tmp_path) == []


def test_incomplete_files_of_a_crash_are_removed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    incoming = Incoming(OutputStore(store), PARTITION, "ann", TASKS, LIMITS, lambda *row: None, only_results=False)
    incoming.write(OutputPart(0, (log(0, b"half"), piece("a", b"half"))))
    assert files(tmp_path / INCOMING) and list(store.all()) == []
    FolderStore(tmp_path)
    assert files(tmp_path) == []


def test_a_node_can_add_result_files_only_to_tasks_that_ran_on_it(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    w = World(observers=[HistoryRecorder(history)])
    w.nodes(2, prefix="n", cpu=1)
    job = w.submit(user="ann", stages=[{"array": 2, "resources": {"cpu": 1}, "duration": 10}])
    w.cycle()
    places = {index: node for (_, index), node in w.placements(job).items()}

    class Control:
        def find(self, partition: str) -> Control:
            return self

        async def read(self, look: Callable[[Partition], Any]) -> Any:
            return look(w.partition())

    control: Any = Control()

    def allowed(node: str, attempt: int = 1, number: int | None = None, check: bool = True) -> tuple[str, Any]:
        tasks = Tasks(job, w.partition().jobs[job].number if number is None else number, "main", attempt, (0, 2))
        source = asyncio.run(source_of(control, history, (PARTITION, node), tasks, check))
        return source.user, source.indices

    for index, node in places.items():
        assert allowed(node) == ("ann", (index, index + 1))
        assert allowed(node, attempt=2) == ("ann", ())
        assert allowed(node, number=99) == ("", ())
        assert allowed(node, check=False) == ("ann", (0, 2))
    assert allowed("other") == ("ann", ())
    w.advance(60)
    assert w.job(job).state == "succeeded"
    for index, node in places.items():
        assert allowed(node) == ("ann", (index, index + 1)), "the history knows where it ran"
    assert allowed("other") == ("ann", ())
    history.close()


# -- object stores that cannot be used -----------------------------------------------------------------------------


def settings(tmp_path: Path, outputs: str, endpoint: str = "") -> ServerOptions:
    return ServerOptions(
        directory=tmp_path, url="", log_size="1Mi", history_size="1Mi", outputs=outputs, outputs_endpoint=endpoint,
        outputs_size="1Gi", outputs_age="1d",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("outputs", "endpoint", "said"),
    [
        ("s3://", "", "is not the address of a bucket; write s3://BUCKET or s3://BUCKET/PREFIX"),
        (
            "s3://b",
            "nowhere",
            "nowhere is not the address of a service; write https://HOST:PORT with --outputs-endpoint",
        ),
        ("gs://b/c", "", "gs://b/c is neither a folder nor s3://BUCKET/PREFIX"),
        ("", "http://127.0.0.1:1", "--outputs-endpoint is for an object store"),
        ("/dev/null/x", "", "name another folder with --outputs"),
    ],
)
def test_a_place_that_cannot_be_used_is_named(tmp_path: Path, outputs: str, endpoint: str, said: str) -> None:
    with pytest.raises(Failed) as failed:
        output_place(settings(tmp_path, outputs, endpoint))
    assert said in str(failed.value)


def test_wrong_buckets_keys_and_addresses_are_found_at_the_start(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Failed, match=r"NoSuchBucket.*create the bucket, or name another one with --outputs"):
        output_place(settings(tmp_path, "s3://nowhere/x", s3.url))
    with s3_server(checks_keys=True) as strict, pytest.raises(Failed, match=r"InvalidAccessKeyId.*AWS_ACCESS_KEY_ID"):
        output_place(settings(tmp_path, "s3://bucket/x", strict.url))
    monkeypatch.setattr("fairlead.history.s3.RETRIES", 0)
    with pytest.raises(Failed, match=r"cannot be used: .*check --outputs, --outputs-endpoint and the network"):
        output_place(settings(tmp_path, "s3://bucket/x", "http://127.0.0.1:1"))


def test_without_the_extra_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(Unusable, match=r"pip install 'fairlead\[s3\]'"):
        ObjectStore("s3://bucket", tmp_path)


def test_credentials_come_from_files_too(tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in s3.environment:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "credentials").write_text("[team]\naws_access_key_id = key\naws_secret_access_key = secret\n")
    (tmp_path / "config").write_text("[profile team]\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    store = ObjectStore(f"s3://{s3.bucket}/{tmp_path.name}", tmp_path / "incoming")
    assert write(store, log(0, b"hello")).size(PARTITION, KEY) == 5
