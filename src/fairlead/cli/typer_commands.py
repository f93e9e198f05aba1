"""What a command is: a function with options, which stand in records that commands can share.

Typer sees the fields of a record as options of the command. The command gets the record.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_type_hints

import typer

from fairlead.cli.output import UNREACHABLE, fail, is_unreachable, problem_document

Function = TypeVar("Function", bound=Callable[..., Any])


class Described(NamedTuple):
    """An option or argument, before its record gives it a name and a type."""

    kind: Callable[..., Any]
    names: tuple[str, ...]
    required: bool
    settings: dict[str, Any]


def option(help: str, *names: str, required: bool = False, **settings: Any) -> Any:
    """Describe a field of a record as an option.

    The option is called like the field, unless another long name is given. Without `default`, the value of an absent
    option is False, an empty text or None, by the type of the field. Other settings are those of `typer.Option`.
    """
    return Described(typer.Option, names, required, {"help": help, **settings})


def argument(help: str, required: bool = False, **settings: Any) -> Any:
    """Describe a field of a record as an argument."""
    return Described(typer.Argument, (), required, {"help": help, **settings})


class Options:
    """Base of the records. Each annotated field is an option or an argument.

    The options of a subclass stand before those of its base.
    """

    described: ClassVar[dict[str, Described]] = {}

    def __init_subclass__(cls) -> None:
        """Take the descriptions out of the fields, and leave their defaults there."""
        cls.described = dict(cls.described)
        for name, form in inspect.get_annotations(cls).items():
            field = vars(cls).get(name)
            if not isinstance(field, Described):
                continue
            cls.described[name] = field
            default = field.settings.pop("default", {"bool": False, "str": ""}.get(form))
            if field.required:
                delattr(cls, name)
            else:
                setattr(cls, name, default)

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)

    @classmethod
    def fields(cls) -> list[str]:
        named = [name for each in cls.__mro__ for name in inspect.get_annotations(each) if each is not Options]
        return list(dict.fromkeys(named))

    @classmethod
    @functools.cache
    def parameters(cls) -> list[Parameter]:
        """Return the fields as parameters of a function."""
        hints = get_type_hints(cls, include_extras=True)
        parameters = []
        for name in cls.fields():
            form = hints[name]
            if name in cls.described:
                form = Annotated[form, cls._described_as(name)]
            default = getattr(cls, name, Parameter.empty)
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=form))
        return parameters

    @classmethod
    def _described_as(cls, name: str) -> Any:
        """Return the description of a field for Typer."""
        kind, names, _, settings = cls.described[name]
        if kind is typer.Option and not any(each.startswith("--") for each in names):
            names = (f"--{name.replace('_', '-')}", *names)
        return kind(*names, **settings)


class Command:
    """A command as Typer calls it. If the server refuses a request, it prints the refusal and exits."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

        self._records: dict[str, type[Options]] = {}
        """Parameter → the record that it takes. Filled when Typer reads the signature, which it does before a call."""

    @functools.cached_property
    def __signature__(self) -> Signature:
        # Annotations are evaluated for the called command only: for all commands this takes longer than most commands.
        listed: list[Parameter] = []
        for name, parameter in inspect.signature(self._function, eval_str=True).parameters.items():
            form = parameter.annotation
            if isinstance(form, type) and issubclass(form, Options):
                self._records[name] = form
                listed += form.parameters()
            else:
                listed.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
        return Signature(listed)

    def __call__(self, **given: Any) -> Any:
        as_json = bool(given.get("as_json"))
        for name, record in self._records.items():
            given[name] = record(**{field: given.pop(field) for field in record.fields()})
        try:
            return self._function(**given)
        except UnicodeEncodeError as problem:
            if problem.reason != "surrogates not allowed":
                raise
            encoding = sys.getfilesystemencoding()
            text = (
                f"{problem.object[:40]!a} is not text in {encoding}; correct it, or set LC_ALL to a locale with UTF-8"
            )
            fail(text, as_json and {"ok": False, "problem": text})
        except Exception as problem:
            # The name of the module is enough: importing the client would slow down commands that call no server.
            if type(problem).__module__.startswith("fairlead.client"):
                _refused(problem, as_json)
            raise


def _refused(problem: Exception, as_json: bool) -> None:
    """Exit if the problem is that the server refused a request, cannot be reached, or is not known."""
    from fairlead.client import NotFound, Problem

    if isinstance(problem, NotFound):
        fail(str(problem), as_json and {"ok": False, "problem": str(problem)}, UNREACHABLE)
    if isinstance(problem, Problem):
        fail(str(problem), as_json and problem_document(problem), UNREACHABLE if is_unreachable(problem) else 1)


class Group(typer.Typer):
    """A group of commands, such as `fairlead node`. Without a command it shows its help."""

    def __init__(self, name: str, help: str, **settings: Any) -> None:
        super().__init__(name=name, help=help, **{"no_args_is_help": True, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            super(Group, self).command(name, **settings)(Command(function))
            return function

        return register
