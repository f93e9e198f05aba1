"""The API as one application: all handlers, and the gate before them."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from fairlead.http import routes
from fairlead.http.confirmation import confirm
from fairlead.http.context import Services
from fairlead.http.dispatch import HANDLERS, Dispatcher
from fairlead.http.middleware import Gate
from fairlead.http.routes.agents import agents

for _module in iter_modules(routes.__path__, f"{routes.__name__}."):
    import_module(_module.name)  # it registers its handlers


def application(services: Services) -> Gate:
    """Return the API as an ASGI application."""
    app = Dispatcher(services, HANDLERS, confirm)
    return Gate(app, agents(services), services.tokens, services.sessions, services.bounds, services.control)
