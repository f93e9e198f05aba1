"""Passes a request to the handler of its operation: finds the route, checks the role, reads the parameters, and turns
answers and errors into responses.

`wire/operations.py` has the paths, roles and parameters of all operations. `serves` registers their handlers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from fairlead.core.commands import Command
from fairlead.core.errors import Refused
from fairlead.core.reader import suggestion
from fairlead.core.resources import shown
from fairlead.http.context import Disconnected, Request, Services
from fairlead.http.responses import Receive, Response, Scope, Send, plain, problem_of, problem_response
from fairlead.http.scopes import check_scope
from fairlead.identity.smallfile import FileProblem
from fairlead.wire import api as wire
from fairlead.wire.operation import API, Answer, Operation, Parameter, Row, row_of
from fairlead.wire.unserved import Unserved

Asked = TypeVar("Asked", bound=Operation[Any])
Handler = Callable[[Request, Any], Awaitable[Any]]
Confirm = Callable[[Request, Row, Any], Awaitable[None]]
ROLES = {
    "user": ("user", "operator", "admin"),
    "manager": ("manager", "operator", "admin"),
    "operator": ("operator", "admin"),
    "admin": ("admin",),
}
"""The least role of an operation → all roles that may call it."""
MAX_PARAMETERS = 1_000
MOST_UNREAD = 64 << 20
"""Bytes of the answers that are sent to one user at a time: those that it does not read stay in memory."""

HANDLERS: dict[type[Operation[Any]], Handler] = {}
"""The handler of each operation."""


def serves(
    operation: type[Operation[Answer]],
) -> Callable[[Callable[[Request, Asked], Awaitable[Answer | Response]]], Handler]:
    """Register the handler of an operation. It gets the request and the operation's parameters, and returns the answer.

    The handler has to check the document of the request, with a reader of the core, whose errors name field and remedy.
    """

    def register(handler: Callable[[Request, Asked], Awaitable[Answer | Response]]) -> Handler:
        HANDLERS[operation] = handler
        return handler

    return register


def serves_command(
    operation: type[Operation[wire.Done]], command: type[Command], change: Callable[..., Awaitable[wire.Done]]
) -> None:
    """Let a command answer an operation. Those of its fields that the operation has too get their values.

    `change` executes the command. It gets the request, the operation's parameters and the command.
    """
    names = [name for name in command.__struct_fields__ if name in operation.__struct_fields__]

    async def handle(request: Request, asked: Any) -> wire.Done:
        return await change(request, asked, command(**{name: getattr(asked, name) for name in names}))

    HANDLERS[operation] = handle


class Route:
    """An operation and its handler."""

    def __init__(self, row: Row, handler: Handler) -> None:
        self.row = row
        self.handler = handler
        self.roles = ROLES[row.route.role] if row.route.role else ()
        self.in_path = [each for each in row.parameters if each.place == "path"]
        self.in_query = {each.sent: each for each in row.parameters if each.place == "query"}
        self.in_headers = [each for each in row.parameters if each.place == "header"]
        self.required = [each for each in self.in_query.values() if each.required]
        self.strict = row.route.path.startswith(API)
        """True if unknown parameters are refused. Probes and scrapers of metrics may send parameters of their own."""

    async def answer(self, request: Request, variables: list[str], confirm: Confirm) -> Response:
        """Answer a request. `variables` has the values of the variable parts of the path."""
        if self.roles and request.caller.role not in self.roles:
            problem = f"a token of role {request.caller.role} may not do this; {self.roles[0]} may"
            raise Refused("token", problem, "forbidden")
        if self.roles:
            check_scope(request.caller, self.row)
        values: dict[str, Any] = {}
        for parameter, text in zip(self.in_path, variables, strict=True):
            values[parameter.name] = _read(parameter, text)
        self._read_query(request.scope["query_string"], values)
        for parameter in self.in_headers:
            text = request.header(parameter.sent)
            if text:
                values[parameter.name] = _read(parameter, text)
        if self.row.document is not None:
            values[self.row.document.name] = _document(await request.body())
        asked = self.row.operation(**values)
        await confirm(request, self.row, asked)
        answer = await self.handler(request, asked)
        route = self.row.route
        return answer if isinstance(answer, Response) else Response(answer, route.status, route.media)

    def _read_query(self, query: bytes, values: dict[str, Any]) -> None:
        given: dict[str, list[str]] = {}
        if query:
            try:
                pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
            except ValueError:
                problem = f"more than {MAX_PARAMETERS} parameters are too many; send fewer"
                raise Refused("query", problem, "malformed") from None
            for name, text in pairs:
                given.setdefault(name, []).append(text)
        for name, texts in given.items():
            parameter = self.in_query.get(name)
            if parameter is None:
                if self.strict:
                    raise _unknown(name, sorted(self.in_query))
            elif parameter.many:
                values[parameter.name] = _read(parameter, texts)
            elif len(texts) > 1:
                raise Refused(name, f"it is given {len(texts)} times; give it once", "malformed")
            else:
                values[parameter.name] = _read(parameter, texts[0])
        for parameter in self.required:
            if parameter.sent not in given:
                raise Refused(parameter.sent, "missing; add it to the query", "malformed")


def _unknown(name: str, known: list[str]) -> Refused:
    it_has = f"it has {', '.join(known)}" if known else "leave it out"
    return Refused(name[:64], f"this request has no such parameter{suggestion(name, known)}; {it_has}")


def _read(parameter: Parameter, text: str | list[str]) -> Any:
    if "\0" in (text if isinstance(text, str) else "".join(text)):
        raise Refused(parameter.sent, "it contains the character NUL; leave it out", "malformed")
    try:
        return msgspec.convert(text, parameter.type, strict=False)
    except msgspec.ValidationError:
        raise Refused(parameter.sent, _wrong(parameter, text), "malformed") from None


def _wrong(parameter: Parameter, text: str | list[str]) -> str:
    """Return what is wrong with the value of a parameter, and what to write instead."""
    form = msgspec.json.schema(parameter.type)
    form = next((each for each in form.get("anyOf", ()) if each.get("type") != "null"), form)
    low, high = form.get("minimum"), form.get("maximum")
    if parameter.choices:
        return f"{shown(text)} is not one of {', '.join(parameter.choices)}; write one of them"
    if form["type"] == "boolean":
        return f"{shown(text)} is neither true nor false; write one of them"
    if form["type"] == "array" and len(text) <= form["maxItems"]:
        wrong = next(each for each in text if not re.search(form["items"]["pattern"], each))
        return f"{shown(wrong)} is not accepted; it has to be of the form {form['items']['pattern']}"
    if form["type"] == "array":
        return f"{len(text)} values are not accepted; give {form.get('minItems', 0)} to {form['maxItems']}"
    if form["type"] == "string":
        least, most = form.get("minLength", 0), form["maxLength"]
        return f"{len(text)} characters are not accepted; write {f'{least} to' if least else 'at most'} {most}"
    span = "" if low is None else f" from {low} to {high}" if high is not None else f", {low} or more"
    return f"{shown(text)} is not accepted; write a {'whole ' if form['type'] == 'integer' else ''}number{span}"


def _document(body: bytes) -> Any:
    if not body:
        raise Refused("body", "missing; send a JSON document", "malformed")
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise Refused("body", f"it is not JSON: {str(problem)[:200]}; correct it", "malformed") from None


class _PathNode:
    """A node of the tree of paths: the nodes below it, by the next part, and the routes that end here, by method."""

    def __init__(self) -> None:
        self.named: dict[str, _PathNode] = {}
        self.variable: _PathNode | None = None
        self.routes: dict[str, Route] = {}

    def add(self, parts: list[str], route: Route) -> None:
        if not parts:
            self.routes[route.row.route.method] = route
            return
        first, *rest = parts
        if first.startswith("{"):
            self.variable = self.variable or _PathNode()
            self.variable.add(rest, route)
        else:
            self.named.setdefault(first, _PathNode()).add(rest, route)

    def find(self, parts: list[str], at: int = 0) -> Iterator[tuple[_PathNode, list[str]]]:
        """Yield the nodes at which a path can end, with its variable parts. Nodes with fixed names come first."""
        if at == len(parts):
            yield self, []
            return
        named = self.named.get(parts[at])
        if named is not None:
            yield from named.find(parts, at + 1)
        if self.variable is not None:
            for end, variables in self.variable.find(parts, at + 1):
                yield end, [parts[at], *variables]


class Dispatcher:
    """All operations as an ASGI application. The scope of a request has its `caller`."""

    def __init__(self, services: Services, handlers: Mapping[type[Operation[Any]], Handler], confirm: Confirm) -> None:
        """`confirm` raises if a change needs a confirmation that it does not have."""
        self._services = services
        self._confirm = confirm
        self._unread: Counter[str] = Counter()
        """User → bytes of answers that are being sent."""
        self._paths = _PathNode()
        for operation, handler in handlers.items():
            row = row_of(operation)
            self._paths.add(row.route.path.strip("/").split("/"), Route(row, handler))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(self._services, scope, receive)
        try:
            response = await self._answer(request)
        except Disconnected:
            return
        caller = scope["caller"]
        user, size = "" if caller is None else caller.user, len(response.body)
        if user in self._unread and self._unread[user] + size > MOST_UNREAD:
            told = f"answers of more than {MOST_UNREAD >> 20} MiB to {user} are not read yet; read them, and ask again"
            response = refused(Unserved("too many", told, 1))
            size = len(response.body)
        self._unread[user] += size
        try:
            await response.send(receive, send)
        finally:
            self._unread[user] -= size
            if not self._unread[user]:
                del self._unread[user]

    async def _answer(self, request: Request) -> Response:
        try:
            parts = [part for part in request.scope["path"].split("/") if part]
            method = request.scope["method"]
            allowed: set[str] = set()
            for end, variables in self._paths.find(parts):
                if method in end.routes:
                    return await end.routes[method].answer(request, variables, self._confirm)
                allowed |= end.routes.keys()
            if allowed:
                served = ", ".join(sorted(allowed))
                problem = plain(405, f"{method} is not served here, but {served}", "method")
                return problem_response(problem, {"allow": served})
            problem = plain(404, f"nothing is served here; {API}/openapi.json lists what is", "missing")
            return problem_response(problem)
        except (Refused, Unserved) as refusal:
            return refused(refusal)
        except FileProblem as problem:
            self._services.fault(problem)
            told = "nothing was done: the server could not write to its disk; ask again later, or ask its operator"
            return refused(Unserved("unavailable", told, 10))
        except Disconnected:
            raise
        except Exception as error:
            self._services.fault(error)  # details go only to the log
            told = "a fault of the server, which has been logged; ask its operator"
            return problem_response(plain(500, told, "fault"))


def refused(error: Refused | Unserved) -> Response:
    """Return the problem document for a refusal, as an answer."""
    retry_after = error.retry_after if isinstance(error, Unserved) else None
    return problem_response(problem_of(error), None if retry_after is None else {"retry-after": str(retry_after)})
