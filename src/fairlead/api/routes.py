"""The whole API as one application: all handlers, the answers to errors, and the gate before them."""

from __future__ import annotations

from typing import Any, cast

from litestar import Litestar, Request, Response, Router
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.params import QueryParameter
from litestar.plugins import PluginProtocol
from litestar.types import ControllerRouterHandler

from fairlead.api import (
    access,
    cluster,
    config,
    future,
    health,
    history,
    jobs,
    live,
    logs,
    managers,
    pastmap,
    pools,
    secrets,
    servers,
    story,
    timeline,
    usage,
    watch,
)
from fairlead.api import results as result_files
from fairlead.api.agents import agents
from fairlead.api.context import Document, Services, http_error, refused
from fairlead.api.middleware import App, Gate
from fairlead.api.openapi import described
from fairlead.api.problems import MEDIA_TYPE, Unserved, plain
from fairlead.api.smallfile import FileProblem
from fairlead.core.errors import Refused
from fairlead.core.reader import suggestion
from fairlead.wire import api as wire

NOUNS = (
    jobs,
    future,
    story,
    logs,
    result_files,
    history,
    usage,
    cluster,
    servers,
    pastmap,
    pools,
    config,
    managers,
    watch,
    live,
    timeline,
    secrets,
    access,
)


class Application(Litestar):
    """Litestar without its default plugins, which load unused libraries."""

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return plugins


async def refuse_unknown_parameters(request: Request[Any, Any, Any]) -> None:
    """Refuse a request with a parameter that its route does not have; the framework would ignore it."""
    if not request.scope["query_string"]:
        return
    known = sorted(
        parameter.kwarg_definition.name or name
        for name, parameter in request.route_handler.parsed_fn_signature.parameters.items()
        if isinstance(parameter.kwarg_definition, QueryParameter)
    )
    for name in request.query_params:
        if name not in known:
            it_has = f"it has {', '.join(known)}" if known else "leave it out"
            raise Refused(name[:64], f"this request has no such parameter{suggestion(name, known)}; {it_has}")


def handlers() -> list[ControllerRouterHandler]:
    """Return all route handlers."""
    below = [handler for noun in NOUNS for handler in noun.HANDLERS]
    return [
        *health.HANDLERS,
        Router("/api/v1", route_handlers=below, dto=Document, before_request=refuse_unknown_parameters),
    ]


def application(services: Services) -> Gate:
    """Return the whole API as an ASGI application."""

    def fault(request: Request[Any, Any, Any], error: Exception) -> Response[wire.Problem]:
        """Answer an internal error. Details go only to the log."""
        services.fault(error)
        problem = plain(500, "a fault of the server, which has been logged; ask its operator", "fault")
        return Response(problem, media_type=MEDIA_TYPE, status_code=500)

    def unwritten(request: Request[Any, Any, Any], error: FileProblem) -> Response[wire.Problem]:
        """Answer that nothing was changed because a file could not be written. Its name goes only to the log."""
        services.fault(error)
        problem = "nothing was done: the server could not write to its disk; ask again later, or ask its operator"
        return refused(request, Unserved("unavailable", problem, 10))

    app = Application(
        handlers(),
        return_dto=None,
        exception_handlers={
            Refused: refused,
            Unserved: refused,
            HTTPException: http_error,
            FileProblem: unwritten,
            Exception: fault,
        },
        openapi_config=None,
        state=State({"services": services, "described": lambda: described(tuple(handlers()), services.version)}),
        logging_config=None,
        request_max_body_size=None,
    )
    return Gate(cast(App, app), agents(services), services.tokens, services.sessions, services.bounds, services.control)
