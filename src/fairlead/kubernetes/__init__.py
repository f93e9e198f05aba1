"""Fairlead as a scheduler for Kubernetes: it reads nodes and pods from an API server and places the pods.

Modules without a server, all pure:

- `objects.py`: the objects of the API that are read and written.
- `names.py`: labels, annotations, gates and scheduler names, ours and those of other schedulers; names that the core
  accepts for objects with longer ones: `node_name(name)`, `job_id(group)`, `ask_name(part, needs)`.
- `quantities.py`: `read_quantity(text) -> Fraction`, `requests(quantities)` (rounded up) and `capacities(quantities)`
  (rounded down) as `dict[str, int]` in the units and by the resource
  names of the core, `documented(amounts)` for an update.
- `pods.py`: `used_by(pod) -> dict[str, int]` with host ports, for pods of any scheduler;
  `needs_of(pod, group) -> Needs | tuple[NotHonoured, ...]`; `Needs` is hashable and `Needs.keys()` gives the keys of an
  ask. `soft_fields(pod)` lists preferences that are not considered.
- `nodes.py`: `node_items(node, used_by_others, ports) -> list[dict]`: the items of an update that bring the node to its
  state.
- `groups.py`: `membership(pod) -> Membership` (key of the group, part, index) from the pod alone;
  `group_of(membership, pods, objects, rules, classes) -> Group` with queue, user, priority, minimum, parts and
  `waits_for` (why it is not asked for yet, or ""); `Group.job_item()`, `Group.ask_items(counts)`.
- `rules.py`: the mapping document for queues and users: `parse_rules(doc) -> Rules`, `Rules.queue(...)`.
- `calls.py`: the table of calls that the adapter makes, from which the ClusterRole is checked.
"""
