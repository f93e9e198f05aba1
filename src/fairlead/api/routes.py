"""Everything that is served, as one application: the handlers, what becomes of errors, and the gate before them."""

from __future__ import annotations

from typing import Any, cast

from litestar import Litestar, Request, Response, Router
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from fairlead.api import access, cluster, config, health, history, jobs, logs, managers, secrets, watch
from fairlead.api.agents import agents
from fairlead.api.gate import App, Gate
from fairlead.api.problems import MEDIA_TYPE, Unserved, plain
from fairlead.api.site import Document, Site, http_error, refused
from fairlead.core.errors import Refused
from fairlead.wire import api as wire


def application(site: Site) -> Gate:
    """The whole API as an ASGI application."""

    def fault(request: Request[Any, Any, Any], error: Exception) -> Response[wire.Problem]:
        """A fault of ours: the caller learns that much, the log learns all."""
        site.fault(error)
        problem = plain(500, "a fault of the server, which has been logged; ask its operator", "fault")
        return Response(problem, media_type=MEDIA_TYPE, status_code=500)

    nouns = (jobs, logs, history, cluster, config, managers, watch, secrets, access)
    app = Litestar(
        [
            *health.HANDLERS,
            Router("/api/v1", route_handlers=[handler for noun in nouns for handler in noun.HANDLERS], dto=Document),
        ],
        return_dto=None,
        exception_handlers={
            Refused: refused,
            Unserved: refused,
            HTTPException: http_error,
            Exception: fault,
        },
        openapi_config=OpenAPIConfig(
            title="Fairlead",
            version=site.version,
            description="Share a fleet of machines fairly among people and jobs.",
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
            security=[{"token": []}],
            use_handler_docstrings=True,
            path="/api/v1/schema",
            render_plugins=[JsonRenderPlugin()],
        ),
        state=State({"site": site}),
        logging_config=None,
        request_max_body_size=None,
    )
    return Gate(cast(App, app), agents(site), site.tokens, site.bounds)
