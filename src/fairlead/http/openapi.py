"""Makes the OpenAPI document from the operations, their types and the examples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import NODEFAULT

from fairlead.http.examples import SENT, answer_of
from fairlead.wire import api as wire
from fairlead.wire.operation import JSON, Operation, Parameter, Row, row_of
from fairlead.wire.operations import Openapi, Readyz

REFERENCE = "#/components/schemas/{name}"
PROBLEM = {"application/problem+json": {"schema": {"$ref": REFERENCE.format(name="Problem")}}}
PROBLEMS = {
    "400": "The request cannot be read.",
    "401": "The token is missing, unknown, revoked or expired.",
    "403": "The token's role, or the queue's lists, do not allow it.",
    "404": "There is no such thing, or the caller may not see it.",
    "409": "The request contradicts the present state.",
    "413": "The request is too large.",
    "422": "The request cannot be carried out; `field` names the cause.",
    "429": "Too many requests, or the inbox is full.",
    "503": "The server is starting, recovering or closing.",
}


@lru_cache(1)
def described(operations: Sequence[type[Operation[Any]]], version: str) -> bytes:
    """Return the OpenAPI document as JSON."""
    rows = [row_of(operation) for operation in operations if operation is not Openapi]
    types = [wire.Problem, *(row.answer for row in rows), *(row.document.type for row in rows if row.document)]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    for name, form in components.items():
        if name.endswith("Document"):
            _allow_null(form)
    paths: dict[str, dict[str, Any]] = {}
    for row, schema in zip(rows, schemas[1:], strict=False):
        paths.setdefault(row.route.path, {})[row.route.method.lower()] = _described(row, schema)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Fairlead",
            "version": version,
            "description": "Share a fleet of machines fairly among people and jobs.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }
    return msgspec.json.encode(document)


def _allow_null(form: dict[str, Any]) -> None:
    """Allow null for optional keys of a document, because readers take it as absent."""
    for key, schema in form["properties"].items():
        if key not in form.get("required", ()):
            form["properties"][key] = {"anyOf": [schema, {"type": "null"}]}


def _described(row: Row, schema: dict[str, Any]) -> dict[str, Any]:
    sent, answered = SENT.get(row.operation_id), answer_of(row)
    content = {"schema": schema if row.route.media == JSON else {}}
    if answered is not None:
        content["example"] = answered
    answer = {"description": "The answer.", "content": {row.route.media: content}}
    found: dict[str, Any] = {
        "operationId": row.operation_id,
        "summary": row.summary,
        "description": row.description,
        "parameters": [_parameter(parameter) for parameter in row.parameters],
        "responses": {str(row.route.status): answer},
    }
    if row.document is not None:
        form = {"$ref": REFERENCE.format(name=row.document.type.__name__)}
        document = {"schema": form} if sent is None else {"schema": form, "example": sent}
        found["requestBody"] = {"required": True, "content": {"application/json": document}}
    if row.operation is Readyz:
        found["responses"]["503"] = {**answer, "description": "Not ready."}
    if row.route.role:
        found["responses"] |= {status: {"description": text, "content": PROBLEM} for status, text in PROBLEMS.items()}
    else:
        found["security"] = [{}]
    return found


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = msgspec.json.schema(parameter.type)
    found = {"name": parameter.sent, "in": parameter.place, "required": parameter.required, "schema": schema}
    if schema.pop("description", ""):
        found["description"] = parameter.description
    if parameter.default not in (NODEFAULT, None, []):
        schema["default"] = parameter.default
    return found
