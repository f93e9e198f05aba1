"""The OpenAPI description matches the server: schemas have the keys that are read, and the examples work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.core.model import JobSpec, StageSpec
from fairlead.history.outputs import OutputStore
from fairlead.history.stores import FolderStore
from fairlead.http.examples import SENT, answer_of
from fairlead.wire import api as wire
from fairlead.wire.operation import Row
from fairlead.wire.operations import rows
from tests.http.serving import Serving, submit


def test_forms_have_the_keys_that_are_read() -> None:
    assert set(wire.StageDocument.__struct_fields__) == {*StageSpec.__struct_fields__, "array"} - {"indices"}
    assert set(wire.JobDocument.__struct_fields__) == {*JobSpec.__struct_fields__, "id"} - {
        "manager",
        "matched",
        "shape_user",
    }


def described(site: Serving) -> dict[str, Any]:
    found: dict[str, Any] = site.as_owner.get("/api/v1/openapi.json").json()
    return found


def operations(site: Serving) -> dict[str, tuple[str, str, dict[str, Any]]]:
    return {
        operation["operationId"]: (method.upper(), path, operation)
        for path, methods in described(site)["paths"].items()
        for method, operation in methods.items()
    }


def test_every_operation_is_described_with_an_example(site: Serving) -> None:
    for name, (_, _, operation) in operations(site).items():
        assert operation["summary"] and operation["description"], name
        content = next(iter(operation["responses"].values()))["content"]
        streams = bool({"text/event-stream", "text/plain", "application/octet-stream"} & set(content))
        assert streams or "example" in content["application/json"], name
        if "requestBody" in operation:
            assert "example" in operation["requestBody"]["content"]["application/json"], name
    assert SENT.keys() <= operations(site).keys()


def test_references_lead_somewhere(site: Serving) -> None:
    document = described(site)
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    assert references(document) <= known


HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
"""The SHA-256 of the content in the example."""
PARAMETERS = {"digest": HELLO, "job": "17", "action": "replace", "partition": "night", "pool": "gpu"}
NAMES = {"managers": "k8s", "secrets": "password"}


@pytest.mark.parametrize("name", SENT)
def test_what_the_examples_send_is_taken(site: Serving, tmp_path: Path, name: str) -> None:
    site.site.outputs = OutputStore(FolderStore(tmp_path / "outputs"))
    site.node("n1")
    site.as_owner.post("/api/v1/managers/k8s")
    pool = {"node": {"cpu": 1}, "max": 8, "provider": {"local": {}}}
    assert site.as_owner.put("/api/v1/partitions/default", json={"pools": {"gpu": pool}}).is_success
    site.as_owner.post("/api/v1/closures", json=SENT["closeNodes"])
    for _ in range(17):
        submit(site.as_owner, SENT["submit"])
    if name == "rerun":
        site.as_owner.post("/api/v1/jobs/17/kill")
    method, path, operation = operations(site)[name]
    for parameter, value in PARAMETERS.items():
        path = path.replace(f"{{{parameter}}}", value)
    path = path.replace("{name}", NAMES.get(path.split("/")[3], ""))
    answer = site.as_owner.request(method, path, json=SENT[name])
    assert answer.is_success, answer.text
    (described,) = [found["content"] for status, found in operation["responses"].items() if status.startswith("2")]
    assert set(answer.json()) == set(described["application/json"]["example"])


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.operation_id)
def test_the_examples_have_the_form_of_their_types(row: Row) -> None:
    if row.document is not None:
        msgspec.convert(SENT[row.operation_id], row.document.type)
    answer = answer_of(row)
    if answer is not None:
        assert set(answer) == set(row.answer.__struct_fields__)
        assert msgspec.to_builtins(msgspec.convert(answer, row.answer)) == answer
