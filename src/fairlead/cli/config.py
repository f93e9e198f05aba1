"""`fairlead config`: check, compare and apply configuration files, and convert files of other schedulers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.input_files import document_of, need_file
from fairlead.cli.options import ClusterWide, Output, Yes
from fairlead.cli.output import confirm, fail, print_json, print_text
from fairlead.cli.typer_commands import Group

if TYPE_CHECKING:
    from fairlead.wire import api as wire

config = Group("config", "Check, compare and apply the configuration.")

File = Annotated[Path, typer.Argument(help="Configuration file, such as fairlead.yaml.")]


@config.command()
def check(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all defaults filled in.")] = False,
) -> None:
    """Check a configuration file without a server.

    The settings that differ from their defaults are printed as Fairlead reads them. Exit code: 0 if the file is valid,
    1 if it is not, 2 if it does not exist.
    """
    need_file(file)
    from fairlead.cli.input_files import Unreadable, read_document
    from fairlead.server.failure import Failed, checked_config

    problem: dict[str, Any] = {"ok": False, "file": str(file)}
    try:
        document = read_document(file)
        shown = checked_config({} if document is None else document, defaults=as_json)
    except Unreadable as wrong:
        place = f"{file}:{wrong.line}" if wrong.line else str(file)
        fail(f"{place}: {wrong.problem}", as_json and {**problem, "line": wrong.line, "problem": wrong.problem})
    except Failed as wrong:
        fail(f"{file}: {wrong}", as_json and {**problem, "field": wrong.field, "problem": wrong.problem})
    if as_json:
        typer.echo(json.dumps({"ok": True, "file": str(file), **shown}, ensure_ascii=False))
        return
    count = len(shown["partitions"])
    typer.echo(
        f"{file}: valid, {count} partition{'s' if count != 1 else ''}; settings that are not shown have their defaults"
    )
    _print_yaml(shown)


imports = Group("import", "Convert configurations of other schedulers.")
config.add_typer(imports)


@imports.command()
def yunikorn(
    file: Annotated[Path, typer.Argument(help="queues.yaml of YuniKorn, or its ConfigMap.")],
) -> None:
    """Convert the queues of YuniKorn and print a configuration for Fairlead.

    A warning names each field that Fairlead has no setting for.
    """
    import yaml

    from fairlead.kubernetes.yunikorn import NotConverted, convert
    from fairlead.server.failure import Failed, checked_config

    try:
        document, warnings = convert(document_of(file))
        checked_config(document, defaults=False)
    except (NotConverted, Failed, yaml.YAMLError) as problem:
        fail(f"{file}: {problem}")
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    _print_yaml(document)


@imports.command()
def kueue(
    file: Annotated[Path, typer.Argument(help="ClusterQueues, cohorts and LocalQueues of Kueue in one file.")],
    *,
    rules: Annotated[
        Path | None, typer.Option(help="Write the rules for pods of the LocalQueues into this new file.")
    ] = None,
) -> None:
    """Convert the queues of Kueue and print a configuration for Fairlead.

    A warning names each field that Fairlead has no setting for. LocalQueues become a file for `fairlead kubernetes
    --rules`.
    """
    import yaml

    from fairlead.kubernetes.kueue import convert, rules_text
    from fairlead.kubernetes.yunikorn import NotConverted
    from fairlead.server.failure import Failed, checked_config

    try:
        documents = list(yaml.safe_load_all(file.read_text()))
        if len(documents) == 1 and isinstance(documents[0], dict) and documents[0].get("kind") == "List":
            documents = documents[0].get("items") or []
        document, rows, warnings = convert(documents)
        checked_config(document, defaults=False)
        if rules is not None:
            with rules.open("x") as new:
                new.write(rules_text(rows))
        elif rows["queues"]:
            warnings.append("LocalQueues: their rules are not written; name a new file with --rules")
    except FileExistsError:
        fail(f"--rules {rules}: there is such a file; name a new one")
    except (NotConverted, Failed, yaml.YAMLError, OSError, UnicodeDecodeError) as problem:
        fail(f"{file}: {problem}")
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    _print_yaml(document)


@imports.command()
def slurm(
    file: Annotated[Path, typer.Argument(help="slurm.conf. Files that it includes are read too.")],
    dump: Annotated[Path | None, typer.Argument(help="File that `sacctmgr dump CLUSTER` wrote.")] = None,
    *,
    qos: Annotated[Path | None, typer.Option(help="File with the output of `sacctmgr -P show qos`.")] = None,
) -> None:
    """Convert the partitions and accounts of Slurm and print a configuration for Fairlead.

    A warning names each key that Fairlead has no setting for, with its line. Comments at the end say how to start the
    agents of the nodes.
    """
    import yaml

    from fairlead.server.failure import Failed, checked_config
    from fairlead.slurm.conf_lines import NotRead, read_conf, read_dump, read_qos
    from fairlead.slurm.conversion import convert

    try:
        document, warnings, agents = convert(
            read_conf(file), list(read_dump(dump)) if dump else [], read_qos(qos) if qos else {}
        )
        checked_config(document, defaults=False)
    except (NotRead, Failed, yaml.YAMLError, OSError) as problem:
        fail(f"{file}: {problem}")
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    _print_yaml(document)
    for line in agents:
        print_text(f"# {line}")


@config.command()
def get(
    *,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Show settings that have their default value too.")
    ] = False,
    common: ClusterWide,
) -> None:
    """Print the configuration of the server, in the form that `fairlead config apply` reads."""
    found = common.request(lambda client: client.config(defaults))
    if common.as_json:
        print_json(found)
    else:
        _print_yaml({"partitions": found.partitions})


@config.command()
def diff(file: File, common: ClusterWide) -> None:
    """Show what `config apply` would change. Nothing is changed."""
    document = document_of(file)
    compared = common.request(lambda client: client.validate_config(document))
    show_differences(common, compared)
    if not common.as_json:
        for loss in compared.losses:
            print_text(_lost(loss))


@config.command()
def apply(file: File, *, yes: Yes = False, common: ClusterWide) -> None:
    """Replace the configuration of the server by a file, and show what changed.

    If a part of the file is refused, nothing is changed. If the file lacks a partition that has jobs or nodes, or a
    pool that has nodes, the command asks for a confirmation.
    """
    document = document_of(file)
    confirm_losses(common, document, yes)
    show_differences(common, common.request(lambda client: client.apply_config(document)))


def _print_yaml(document: object) -> None:
    import yaml

    typer.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=None), nl=False)


def show_differences(output: Output, applied: wire.Applied) -> None:
    """Print the settings that changed, one per line, or as JSON."""
    output.show(applied, map(_line, applied.differences) if applied.differences else ["no difference"])
    for left in () if output.as_json else applied.machines:
        print_text(
            f"{left.partition}: machine {left.name} of pool {left.pool} still runs; end it yourself: {left.reason}",
            err=True,
        )


def confirm_losses(common: ClusterWide, document: Any, yes: bool) -> None:
    """Ask for a confirmation if a configuration kills jobs, removes nodes, or removes a pool that has nodes."""
    losses = [] if yes else common.request(lambda client: client.validate_config(document)).losses
    if losses:
        confirm(f"{'; '.join(map(_lost, losses))}. Apply it?", yes)


def _lost(loss: wire.Loss) -> str:
    """Return a sentence that says what is lost if a partition or a pool is removed."""
    if loss.jobs is None or loss.nodes is None:
        return f"{loss.key}: its jobs will be killed and its nodes removed, if it has any"
    nodes = f"{loss.nodes} node{'s' * (loss.nodes != 1)}"
    if ".pools." in loss.key:
        return f"{loss.key}: its {nodes} will stay, and Fairlead will no longer give them back"
    return f"{loss.key}: {loss.jobs} job{'s' * (loss.jobs != 1)} will be killed, and {nodes} removed"


def _line(difference: wire.Difference) -> str:
    if difference.what == "queue" and difference.after is None:
        return f"{difference.key}: queue removed; its jobs still run, and it takes no new ones"
    if difference.what != "setting" and difference.after is None:
        return f"{difference.key}: {difference.what} removed"
    if difference.what != "setting" and difference.before is None:
        return f"{difference.key}: {difference.what} added, {_text(difference.after)}"
    return f"{difference.key}: {_text(difference.before)} -> {_text(difference.after)}"


def _text(value: object) -> str:
    return "(default)" if value is None else json.dumps(value, ensure_ascii=False)
