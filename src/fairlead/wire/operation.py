"""How an operation of the API is described: by a class in `operations.py` whose fields are its parameters.

A field that the path names is a parameter of the path. A field with a document as its type is the body, and one marked
as `HEADER` is a header. All others are parameters of the query.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, dataclass_transform, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, StructMeta, field

from fairlead.wire import api as wire

API = "/api/v1"
JSON, TEXT, BYTES, EVENTS = "application/json", "text/plain", "application/octet-stream", "text/event-stream"
"""Media types of answers. The answer type of an operation that streams events is that of an event."""

Answer = TypeVar("Answer")
Role = Literal["user", "manager", "operator", "admin", ""]
Place = Literal["path", "query", "header", "body"]


class Route(msgspec.Struct, frozen=True):
    """Where an operation is served, and how it answers."""

    method: str
    path: str
    role: Role = "user"
    """The lowest role that may call it; empty if no token is needed. Operations of `manager` are also for operators."""
    status: int = 200
    media: str = JSON
    seconds: float = 0.0
    """Seconds that the answer may take longer than others."""
    asks: bool = False
    """True if it changes nothing, although its method is not GET."""

    @property
    def changes(self) -> bool:
        """True if it may change something. A tunnel does: through it, commands are given to a task."""
        return self.status == 101 or not (self.method == "GET" or self.asks)


class Described(StructMeta):
    """Metaclass of operations: reads the route from the keywords of a class statement, such as `GET="jobs/{job}"`.

    Paths without a leading slash are below `/api/v1`.
    """

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **route: Any) -> Described:
        for method in ("GET", "POST", "PUT", "DELETE"):
            if method in route:
                path = route.pop(method)
                path = path if path.startswith("/") else f"{API}/{path}"
                namespace["route"] = Route(method, path, **route)
        return super().__new__(mcls, name, bases, namespace, kw_only=True)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Operation(msgspec.Struct, Generic[Answer], metaclass=Described):
    """An operation, named by its class: `SetPriority` is `setPriority` in OpenAPI and `set_priority` in Python."""


class Parameter(NamedTuple):
    """A parameter of an operation. `name` is its name in Python, `sent` the one in requests."""

    name: str
    sent: str
    place: Place
    type: Any
    default: Any
    """`NODEFAULT` if the parameter is required."""
    description: str

    @property
    def required(self) -> bool:
        return self.default is NODEFAULT

    @property
    def many(self) -> bool:
        """True if the parameter may be given several times."""
        return get_origin(bare(self.type)) is list

    @property
    def choices(self) -> list[str]:
        """The values that the parameter may have; empty if they are not listed."""
        kinds = (bare(self.type), *get_args(bare(self.type)))
        return [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]


class Row(NamedTuple):
    """An operation with its route, parameters and description, as read from its class by `row_of`."""

    operation: type[Operation[Any]]
    name: str
    route: Route
    answer: Any
    parameters: tuple[Parameter, ...]
    document: Parameter | None
    description: str

    @property
    def summary(self) -> str:
        """The first sentence of the description, or its part before a colon."""
        return re.split(r"[.:](?:\s|$)", self.description, maxsplit=1)[0].replace("\n", " ")

    @property
    def operation_id(self) -> str:
        """The name in OpenAPI."""
        return self.operation.__name__[0].lower() + self.operation.__name__[1:]

    def has(self, name: str) -> bool:
        return any(parameter.name == name for parameter in self.parameters)

    @property
    def follows(self) -> bool:
        """True if a server that only follows the journal of the partition may answer too."""
        return self.has("min_revision")


@cache
def row_of(operation: type[Operation[Any]]) -> Row:
    """Return the row of an operation."""
    route: Route = operation.route  # type: ignore[attr-defined]  # the metaclass sets it
    in_path = re.findall(r"{(\w+)}", route.path)
    found = []
    document = None
    for each in msgspec.structs.fields(operation):
        meta = _meta(each.type)
        place: Place = "path" if each.name in in_path else "header" if _is_header(meta) else "query"
        default = each.default if each.default_factory is NODEFAULT else each.default_factory()
        parameter = Parameter(each.name, each.encode_name, place, each.type, default, meta.description or "")
        if isinstance(each.type, type) and issubclass(each.type, wire.Request):
            document = parameter._replace(place="body")
        else:
            found.append(parameter)
    found.sort(key=lambda parameter: in_path.index(parameter.name) if parameter.place == "path" else len(in_path))
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", operation.__name__).lower()
    text = re.sub(r"(?<=\S)\n +(?=\S)", " ", operation.__doc__ or "").strip()
    return Row(operation, name, route, _answer(operation), tuple(found), document, re.sub(r"\n +", "\n", text))


def bare(annotated: Any) -> Any:
    """Return a type without its annotations."""
    return get_args(annotated)[0] if hasattr(annotated, "__metadata__") else annotated


def _meta(annotated: Any) -> Meta:
    return next((mark for mark in getattr(annotated, "__metadata__", ()) if isinstance(mark, Meta)), Meta())


def _is_header(meta: Meta) -> bool:
    return bool(meta.extra and meta.extra.get("header"))


def _answer(operation: type[Any]) -> Any:
    """Return the type of the answer: the argument of `Operation`, or of a generic class derived from it."""
    return next(get_args(base)[0] for base in operation.__orig_bases__ if get_args(base))


# -- parameters that operations share ----------------------------------------------------------------------------

HEADER = {"header": True}
Name = Annotated[str, Meta(max_length=63)]
QueuePath = Annotated[str, Meta(max_length=1_000)]
QueueFilter = Annotated[str, Meta(max_length=1_000, description="A queue, including the queues below it.")]
LabelFilter = Annotated[str, Meta(max_length=400, description="`key=value`, as a label of the job.")]
PartitionName = Annotated[
    str, Meta(max_length=63, description="The partition. By default the only one, or the one called default.")
]
Key = Annotated[
    str,
    Meta(
        max_length=190,
        description="A repeated request with the same key gets the same answer and changes nothing more.",
        extra=HEADER,
    ),
]
Confirm = Annotated[
    str,
    Meta(
        max_length=40,
        description="`ask` refuses a change that affects the work of other users, with what it would do and the code "
        "that confirms it here. Tokens can require this.",
        extra=HEADER,
    ),
]
Revision = Annotated[
    int,
    Meta(ge=0, description="Answer as of this revision or later: the `Fairlead-Revision` of an earlier answer."),
]
Digest = Annotated[str, Meta(max_length=64, description="The SHA-256, as 64 hexadecimal digits.")]
Cursor = Annotated[str, Meta(max_length=20, description="`next` of the page before.")]
Limit = Annotated[int, Meta(ge=1, le=1_000)]
Moment = Annotated[str, Meta(max_length=40, description="Seconds since 1970.")]
Index = Annotated[int, Meta(ge=0, le=10_000_000)]
AttemptNumber = Annotated[int, Meta(ge=1, le=2**53)]
LastResults = Annotated[AttemptNumber | None, Meta(description="By default the last attempt that has result files.")]
AfterEvent = Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="Only events after this event id.")]
LastEvent = Annotated[str, Meta(max_length=20, extra=HEADER)]


class OfPartition(Operation[Answer]):
    """Base of operations in one partition."""

    partition: PartitionName = ""


class Followed(OfPartition[Answer]):
    """Base of reads that a server which only follows the journal of the partition may answer too."""

    min_revision: Revision = 0


class Change(OfPartition[Answer]):
    """Base of changes. A change that is sent again with the same key takes effect only once."""

    key: Key = field(default="", name="Idempotency-Key")
    confirm: Confirm = field(default="", name="Fairlead-Confirm")
