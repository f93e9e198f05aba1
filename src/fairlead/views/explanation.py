"""Explanations of jobs: one sentence, with typed reasons and causes. `World`, the API and the command line use them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlead.core.admission import held_back
from fairlead.core.model import KINDS, Job, Micros
from fairlead.core.resources import MEMORY, MILLI, format_amount, format_quantity, noun_of
from fairlead.core.state import Partition
from fairlead.core.why.reasons import (
    HIDDEN,
    AfterTasks,
    AfterUnmet,
    HeldBack,
    HeldFor,
    NeverFits,
    NoCapacity,
    Reason,
    Sees,
    nodes_in_words,
)
from fairlead.core.why.remedies import find_remedies
from fairlead.core.why.remedy_steps import Remedy
from fairlead.views.causes import Cause, LastAttempt, Launching, OnLoan, Over, RunsOn, Stopping, causes_of
from fairlead.views.outlook import are, listed, number_of_nodes, number_of_tasks, shortened
from fairlead.views.summaries import Reasons, Waiting, explain_view, shown_state

SEARCHED = 3
"""The greatest number of asks of a job for which remedies are searched."""
SHOWN = 3
"""The greatest number of remedies that are shown for an ask."""

FoundRemedies = dict[tuple[str, str], tuple[Remedy, ...]]
"""Stage and kind → remedies."""


class Explained(msgspec.Struct, frozen=True):
    """A job's state, and why it is in this state."""

    job: str
    state: str
    sentence: str
    waiting: tuple[Waiting, ...]
    causes: tuple[Cause, ...]

    def __str__(self) -> str:
        return self.sentence


def explained(
    partition: Partition, job: Job, reasons: Reasons, now: Micros, sees: Sees = lambda job: True
) -> Explained:
    """Explain a job at a time. Ids of jobs that the reader may not see are left out."""
    waiting = tuple(view.shown_to(sees) for view in explain_view(partition, job, reasons, now))
    causes = tuple(causes_of(partition, job))
    return Explained(job.id, shown_state(job), _sentence(job, waiting, causes), waiting, causes)


def with_remedies(view: Explained, found: FoundRemedies, sees: Sees) -> Explained:
    """Add remedies to an explanation. Ids of jobs that the reader may not see are left out."""
    waiting = tuple(
        msgspec.structs.replace(
            ask, remedies=tuple(remedy.shown_to(sees) for remedy in found.get((ask.stage, ask.kind), ()))
        )
        for ask in view.waiting
    )
    return msgspec.structs.replace(view, waiting=waiting)


def remedies_of(
    partition: Partition, job: Job, now: Micros, expired: Callable[[], bool] = lambda: False
) -> FoundRemedies:
    """Return remedies that would start the waiting tasks of a job. The partition is a copy, which is altered."""
    found: FoundRemedies = {}
    for stage in job.stages:
        for kind, wanted in enumerate(stage.pending):
            if wanted is None or len(found) == SEARCHED or expired():
                continue
            if stage.whole(kind) and found:
                found[stage.name, KINDS[kind]] = next(iter(found.values()))  # all stages share one ask
                continue
            remedies = find_remedies(partition, stage, kind, now, expired)
            found[stage.name, KINDS[kind]] = _chosen(remedies)
    return found


def _chosen(remedies: list[Remedy]) -> tuple[Remedy, ...]:
    """Return up to `SHOWN` remedies: the cheapest of each kind, then the next ones of each kind."""
    kinds: dict[int, int] = {}
    ranked: list[tuple[int, int, Remedy]] = []
    for at, remedy in enumerate(remedies):
        kind = remedy.cost[0]
        kinds[kind] = kinds.get(kind, 0) + 1
        ranked.append((kinds[kind], at, remedy))
    chosen = sorted(sorted(ranked, key=lambda entry: entry[:2])[:SHOWN], key=lambda entry: entry[1])
    return tuple(remedy for _, _, remedy in chosen)


# -- the sentence ------------------------------------------------------------------------------------------------


def _sentence(job: Job, waiting: tuple[Waiting, ...], causes: tuple[Cause, ...]) -> str:
    """Return the one sentence about a job: waiting tasks first, then stopping, starting and running ones."""
    parts = _about_job(job, waiting, causes)
    told = [cause for cause in causes if isinstance(cause, RunsOn | Launching | Stopping | LastAttempt)]
    alone = not waiting and len(told) == 1
    about_job = bool(parts) or (alone and _is_whole(told[0], job))
    parts += [_told(cause, job, alone) for cause in told]
    parts += [str(cause) for cause in causes if isinstance(cause, OnLoan)]
    if not parts:
        idle = f"has no tasks: {job.manager} asks for none now" if job.manager else f"is {shown_state(job)}"
        return f"job {job.id} {idle}"
    return f"job {job.id}{'' if about_job else ':'} {'; '.join(parts)}"


def _about_job(job: Job, waiting: tuple[Waiting, ...], causes: tuple[Cause, ...]) -> list[str]:
    """Return the part of the sentence about the whole job, if there is one."""
    over = [f"is over: {cause}" for cause in causes if isinstance(cause, Over)]
    if over or not (waiting or job.held_by is not None):
        return over
    return [_waits(job, waiting) if waiting else f"is {held_back(job)}"]


def _is_whole(cause: Cause, job: Job) -> bool:
    return len(job.stages) == 1 and cause.tasks == job.stages[0].size


def _told(cause: Cause, job: Job, alone: bool) -> str:
    """Return a cause as part of the sentence. `alone` adds all details."""
    tasks = number_of_tasks(cause.tasks)
    several = len(job.stages) > 1
    whole = alone and _is_whole(cause, job)
    subject = "" if whole else f"{tasks} of {cause.stage} " if several else f"{tasks} "
    one = whole or cause.tasks == 1
    match cause:
        case RunsOn():
            return f"{subject}{'runs' if one else 'run'} on {cause.where}{f', {cause.why}' if alone else ''}"
        case Launching():
            return f"{subject}{'is' if one else 'are'} starting on {cause.where}"
        case Stopping():
            why = f"for {cause.stops_for}" if cause.stops_for else f"because of {STOPS.get(cause.cause, cause.cause)}"
            return f"{subject}{'stops' if one else 'stop'} on {cause.where} {why}"
        case LastAttempt():
            return f"{tasks}{f' of {cause.stage}' * several} {cause.again}"
    return str(cause)


STOPS = {
    "kill": "a kill",
    "scale": "a smaller scale",
    "time limit": "its time limit",
    "preempt": "a better right",
    "gang": "a gang member that failed or was lost",
    "requeue": "a requeue",
    "done": "the end of its job",
    "replace": "a replacement",
}


def _waits(job: Job, waiting: tuple[Waiting, ...]) -> str:
    first = next((view for view in waiting if view.never), waiting[0])
    text = _waits_for(first, job)
    stages = {view.stage for view in waiting}
    if len(stages) > 1 and not job.whole:
        text = f"{text} (stage {first.stage}; {len(stages) - 1} more {'stage waits' if len(stages) == 2 else 'wait'})"
    return text


def _waits_for(view: Waiting, job: Job) -> str:
    """Return why tasks can never start, if so, and what they wait for now."""
    if not view.never:
        return f"{_waits_now(view, job)}{view.afterwards}"
    never = f"can never run as the cluster is now: {why_never_told(view.then or view.reason)}"
    waits = view.then is not None and (view.reason is not None or view.behind)
    return f"{never}; it {_waits_now(view, job)}" if waits else never


def _waits_now(view: Waiting, job: Job) -> str:
    reason = view.reason
    if isinstance(reason, NoCapacity):
        return _waits_for_capacity(reason)
    also = "also " if view.never else ""
    if isinstance(reason, AfterUnmet | AfterTasks):
        return f"{also}{reason}"
    if isinstance(reason, HeldBack) and reason.until:
        return f"{also}{reason}"
    if isinstance(reason, HeldBack):
        return f"is {also}{reason}"
    if reason is not None:
        return f"{also}waits: {reason}"
    return f"{also}waits {view.behind} in queue {job.queue.path}" if view.behind else "waits for its turn"


def why_never_told(reason: Reason | None) -> str:
    """Return why a job can never run, as the end of a sentence."""
    return reason.why if isinstance(reason, NeverFits) else str(reason)


def _waits_for_capacity(reason: NoCapacity) -> str:
    wanted, fitting = reason.wanted, reason.fitting
    if reason.stages:
        _, wanted, fitting = reason.stages[-1]
    details: list[str] = []
    if reason.lacks:
        text = f"waits for {format_amount(reason.lacks, wanted * reason.asked)}"
        if wanted > 1:
            stage = f" of {reason.stages[-1][0]}" if reason.stages else ""
            text += f" at once ({wanted} tasks{stage} with {format_quantity(reason.lacks, reason.asked)} each)"
        details.append(_free(reason, fitting))
    else:
        text = "waits for a node for 1 task" if wanted == 1 else f"waits for nodes for {wanted} tasks at once"
        if not reason.closed:
            details.append(nodes_in_words(reason.failed[:3], wanted))
    details = [*filter(None, details)]
    if reason.coming:
        details.append("tasks stop for it")
    if reason.held:
        details.append(f"{number_of_nodes(reason.held)} {are(reason.held)} held for it")
    if reason.ordered:
        details.append(f"{number_of_nodes(reason.ordered)} {are(reason.ordered)} ordered for it")
    details += [_held(hold) for hold in reason.closed[:2]]
    details += [str(late) for late in reason.stuck[:1]]
    if not reason.ordered:
        details += reason.pools
    return f"{text}: {'; '.join(details)}" if details else text


def _free(reason: NoCapacity, fitting: int) -> str:
    """Return how much of the missing resource is free; empty if enough is free and another cause decides."""
    amount = format_quantity(reason.lacks, reason.unused)
    verb = "is" if reason.unused <= MILLI and reason.lacks != MEMORY else "are"
    if reason.free:
        names = listed(tuple(name for name, _ in reason.free), reason.free_nodes)
        if fitting >= reason.wanted:
            return ""  # it is counted otherwise by the core
        return f"{amount} {verb} free on {names}, enough for {fitting}"
    where = "" if reason.taking == reason.nodes else _where_it_can_run(reason)
    if not reason.taking:
        return nodes_in_words(reason.unnamed[:3], reason.wanted)
    if not reason.unused:
        return f"no {noun_of(reason.lacks, MILLI)} is free{where}"
    if reason.largest == reason.unused:
        return f"only {amount} {verb} free{where}"
    return f"{amount} {verb} free{where}, at most {format_quantity(reason.lacks, reason.largest)} on one node"


def _where_it_can_run(reason: NoCapacity) -> str:
    """Return the number of nodes that can run the tasks, and of lost nodes, as the end of a sentence."""
    only = "the only node" if reason.taking == 1 else f"the {reason.taking} of {reason.nodes} nodes"
    lost = dict(reason.failed).get("lost", 0)
    others = "1 other node is lost" if lost == 1 else f"{lost} other nodes are lost"
    return f" on {only} that can run it{f' ({others})' if lost else ''}"


def _held(hold: HeldFor) -> str:
    names = listed(hold.names, hold.nodes)
    waited = f", which has waited {shortened(hold.waited)}" if hold.waited else ""
    return f"{names} {are(hold.nodes)} held for {f'job {hold.job}' if hold.job else HIDDEN}{waited}"
