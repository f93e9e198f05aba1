"""The OpenAPI description matches the server: schemas have the keys that are read, and the examples work."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.api.examples import EXAMPLES, JOB_ANSWER, NODE_ANSWER, POOL_ANSWER
from fairlead.core.model import JobSpec, StageSpec
from fairlead.wire import api as wire
from tests.api.serving import Serving, submit


def test_forms_have_the_keys_that_are_read() -> None:
    assert set(wire.StageDocument.__struct_fields__) == {*StageSpec.__struct_fields__, "array"}
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
        assert streams or name in EXAMPLES, name
        if "requestBody" in operation:
            assert "example" in operation["requestBody"]["content"]["application/json"], name
    assert set(EXAMPLES) <= set(operations(site))


def test_references_lead_somewhere(site: Serving) -> None:
    document = described(site)
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    assert references(document) <= known


PARAMETERS = {"job_id": "17", "manager": "k8s", "partition_name": "night", "secret": "password", "pool": "gpu"}


@pytest.mark.parametrize("name", [name for name, (sent, _) in EXAMPLES.items() if sent is not None])
def test_what_the_examples_send_is_taken(site: Serving, name: str) -> None:
    site.node("n1")
    site.as_owner.post("/api/v1/managers/k8s")
    pool = {"node": {"cpu": 1}, "max": 8, "provider": {"local": {}}}
    assert site.as_owner.put("/api/v1/partitions/default", json={"pools": {"gpu": pool}}).is_success
    for _ in range(17):
        submit(site.as_owner, EXAMPLES["submit"][0])
    method, path, _ = operations(site)[name]
    for parameter, value in PARAMETERS.items():
        path = path.replace(f"{{{parameter}}}", value)
    answer = site.as_owner.request(method, path, json=EXAMPLES[name][0])
    assert answer.is_success, answer.text
    assert set(answer.json()) == set(EXAMPLES[name][1])


FORMS: dict[str, type[wire.Answer]] = {
    "job": wire.Job,
    "node": wire.Node,
    "jobs": wire.JobPage,
    "queues": wire.Queues,
    "lanes": wire.Lanes,
    "pools": wire.Pools,
    "usage": wire.Usage,
}


@pytest.mark.parametrize("name", FORMS)
def test_what_the_examples_answer_has_the_right_form(name: str) -> None:
    msgspec.convert(EXAMPLES[name][1], FORMS[name])
    assert msgspec.to_builtins(msgspec.convert(JOB_ANSWER, wire.Job)) == JOB_ANSWER
    assert msgspec.to_builtins(msgspec.convert(POOL_ANSWER, wire.Pool)) == POOL_ANSWER
    assert set(NODE_ANSWER) == set(wire.Node.__struct_fields__)
