"""Shapes: what a task needs of a node, in a canonical form. Stages with equal needs share one `Shape` object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from fairlead.core.expressions import Preferences, Where, accepts, format_term, format_where, holds, labels_of
from fairlead.core.resources import GPU, Vector, format_vector

WHOLE_DEVICE = 1000  # milli-GPU
PLUGIN = "/gpu"
"""The names of GPUs of Kubernetes' device plugins end with this, such as `nvidia.com/gpu`. They are whole and have no
numbers."""

POOL = "pool"
"""The label by which a task may select and prefer nodes by their pool."""

SOFT = ":PreferNoSchedule"
"""The suffix of a soft taint. Nodes with a soft taint accept all tasks, but are used last."""

IMAGES = "image."
"""Begins the labels by which a node tells which kinds of container images it runs; the kind follows."""

Selectors = tuple[tuple[str, tuple[str, ...]], ...]
"""Label → the accepted values, sorted by label; `*` stands for any value."""


class ShapeKey(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The properties by which the scheduler distinguishes tasks."""

    resources: tuple[tuple[str, int], ...] = ()
    selectors: Selectors = ()
    tolerations: tuple[str, ...] = ()
    pool: str = ""
    manager: str = ""
    """The resource manager of the nodes; empty for nodes with our agents."""
    near: str = ""
    """A label or empty: a gang is placed on nodes with as few different values of this label as possible."""
    apart: bool = False
    """True if no two tasks of a stage may share a node."""
    user: str = ""
    """The user if the partition may have nodes for named users only; otherwise empty, so that users share lanes."""
    where: Where = ()
    """Conditions on the labels of nodes."""
    prefer: Preferences = ()
    """Conditions on the labels of nodes that are preferred, with weights."""


def image_label(image: str) -> str:
    """Return the label of the nodes that run containers of this kind of image."""
    scheme, sign, _ = image.partition("://")
    return IMAGES + (scheme if sign else "sif" if image.endswith(".sif") else "folder")


def plugged_in(resources: Iterable[tuple[str, int]]) -> str:
    """Return the name of the GPUs of a device plugin, if they are whole and of one kind; else an empty text."""
    found = [(name, amount) for name, amount in resources if amount and name.endswith(PLUGIN)]
    return found[0][0] if len(found) == 1 and not found[0][1] % WHOLE_DEVICE else ""


class Shape:
    """A shape with precomputed values for matching."""

    __slots__ = (
        "_patterns",
        "amounts",
        "device_milli",
        "devices",
        "ever",
        "gpu_milli",
        "gpus",
        "key",
        "labels",
        "plugged",
        "selecting",
        "stages",
        "text",
    )

    def __init__(self, key: ShapeKey) -> None:
        self.key = key
        self.amounts = key.resources
        gpu = dict(key.resources).get(GPU, 0)
        # `gpu: 2` takes two whole devices, `gpu: 0.25` a quarter of one.
        self.devices = gpu // WHOLE_DEVICE if gpu >= WHOLE_DEVICE else min(gpu, 1)
        self.device_milli = min(gpu, WHOLE_DEVICE)
        self.plugged = "" if gpu else plugged_in(key.resources)
        """The name of the GPUs of a device plugin that it asks for; empty without."""
        self.gpus, self.gpu_milli = self.devices, self.device_milli
        """As `devices` and `device_milli`, also for GPUs without numbers."""
        if self.plugged:
            self.gpus, self.gpu_milli = dict(key.resources)[self.plugged] // WHOLE_DEVICE, WHOLE_DEVICE
        self.stages = 0
        self.ever: tuple[tuple[int, int, str], int, bool] | None = None
        """Cached result of `never.most_ever`: versions of nodes and pools, number of tasks, True if it is exact."""
        self.text = _text(key)
        self.selecting = tuple(sorted({*[label for label, _ in key.selectors], *labels_of(key.where)}))
        """The labels that decide whether a node is accepted."""
        preferred = labels_of(tuple([term for term, _ in key.prefer]))
        self.labels = tuple(sorted({*self.selecting, *preferred, *([key.near] if key.near else [])}))
        """All labels that decide whether and where a task is placed."""
        self._patterns = [toleration.split("*", 1) for toleration in key.tolerations if "*" in toleration]

    def __repr__(self) -> str:
        return f"Shape({self.text})"

    @property
    def gpu_name(self) -> str:
        return self.plugged or (GPU if self.devices else "")

    @property
    def resources(self) -> Vector:
        return dict(self.amounts)

    def accepts(self, labels: Mapping[str, str], taints: Iterable[str], pool: str, users: tuple[str, ...] = ()) -> bool:
        """True if a node with these properties accepts such a task. Empty `users` stand for all users."""
        key = self.key
        if users and key.user not in users:
            return False
        if key.pool and key.pool != pool:
            return False
        labels = self._with_pool(labels, pool)
        for label, values in key.selectors:
            value = labels.get(label)
            if value is None or not ("*" in values or value in values):
                return False
        if key.where and not accepts(key.where, labels):
            return False
        return all(taint.endswith(SOFT) or self.tolerates(taint) for taint in taints)

    def tolerates(self, taint: str) -> bool:
        """True if a toleration is equal to the taint, or matches it with a `*`."""
        return taint in self.key.tolerations or any(
            len(taint) >= len(start) + len(end) and taint.startswith(start) and taint.endswith(end)
            for start, end in self._patterns
        )

    def rank(self, labels: Mapping[str, str], taints: Iterable[str], pool: str) -> tuple[int, int]:
        """Return the rank of a node that accepts the shape, by preference; the lowest is used first."""
        labels = self._with_pool(labels, pool)
        soft = sum(taint.endswith(SOFT) and not self.tolerates(taint) for taint in taints)
        return soft, -sum(weight for term, weight in self.key.prefer if holds(term, labels))

    def _with_pool(self, labels: Mapping[str, str], pool: str) -> Mapping[str, str]:
        """Return the labels of a node, with its pool as the label `pool` unless it has a label of this name."""
        return {POOL: pool, **labels} if pool and POOL in self.labels else labels


def _text(key: ShapeKey) -> str:
    parts = [format_vector(dict(key.resources)) or "nothing"]
    parts += [f"{label} in {','.join(values)}" for label, values in key.selectors]
    if key.where:
        parts.append(f"where {format_where(key.where)}")
    parts += [f"prefers {format_term(term)} ({weight})" for term, weight in key.prefer]
    parts += [f"tolerates {taint}" for taint in key.tolerations]
    if key.pool:
        parts.append(f"pool {key.pool}")
    if key.near:
        parts.append(f"near {key.near}")
    if key.apart:
        parts.append("apart")
    if key.manager:
        parts.append(f"nodes of {key.manager}")
    return "; ".join(parts)
