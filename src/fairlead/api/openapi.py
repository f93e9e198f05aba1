"""The OpenAPI document: the framework's description of the handlers, completed with schemas, examples and problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Litestar
from litestar.types import ControllerRouterHandler

from fairlead.api.examples import EXAMPLES
from fairlead.wire import api as wire

FORMS = [
    value
    for value in vars(wire).values()
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and value not in (wire.Request, wire.Answer)
]
REFERENCE = "#/components/schemas/{name}"
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


def described(handlers: Sequence[ControllerRouterHandler], version: str) -> bytes:
    """Return the OpenAPI document of the handlers as JSON. Building it is slow, so it is built on demand."""
    from litestar.openapi.config import OpenAPIConfig
    from litestar.openapi.plugins import JsonRenderPlugin
    from litestar.openapi.spec import Components, SecurityScheme

    config = OpenAPIConfig(
        title="Fairlead",
        version=version,
        description="Share a fleet of machines fairly among people and jobs.",
        components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
        security=[{"token": []}],
        use_handler_docstrings=True,
        render_plugins=[JsonRenderPlugin()],
    )
    app = Litestar(handlers, return_dto=None, openapi_config=config, logging_config=None)
    return msgspec.json.encode(_document(app))


def _document(app: Litestar) -> dict[str, Any]:
    document: dict[str, Any] = app.openapi_schema.to_schema()
    _, components = msgspec.json.schema_components(FORMS, ref_template=REFERENCE)
    schemas = document["components"]["schemas"]
    # The framework's schemas of these types are incomplete; replace them with complete ones.
    for name, form in components.items():
        if name.endswith("Document"):
            _allow_null(form)
    document["components"]["schemas"] = {**schemas, **components}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            _complete(operation, bool(path.startswith("/api/")))
    return document


def _allow_null(form: dict[str, Any]) -> None:
    """Allow null for optional keys of a request; it counts as absent."""
    for key, schema in form["properties"].items():
        if key not in form.get("required", ()):
            form["properties"][key] = {"anyOf": [schema, {"type": "null"}]}


def _complete(operation: dict[str, Any], guarded: bool) -> None:
    responses = operation["responses"]
    responses.pop("400", None)
    if operation["operationId"] == "readyz":
        responses["503"] = {**responses["200"], "description": "Not ready."}
    elif guarded or operation["operationId"] == "metrics":
        for status, meaning in PROBLEMS.items():
            responses[status] = {
                "description": meaning,
                "content": {"application/problem+json": {"schema": {"$ref": REFERENCE.format(name="Problem")}}},
            }
    sent, answered = EXAMPLES.get(operation["operationId"], (None, None))
    if sent is not None:
        operation["requestBody"]["content"]["application/json"]["example"] = sent
    if answered is not None:
        status = next(status for status in responses if status.startswith("2"))
        for content in responses[status]["content"].values():
            content["example"] = answered
