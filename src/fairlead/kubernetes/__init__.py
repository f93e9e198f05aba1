"""Fairlead as a scheduler for Kubernetes: it reads nodes and pods from an API server and places the pods.

Modules without I/O, all pure:

- `objects.py`: the API objects that are read and written.
- `names.py`: labels, annotations, gates and scheduler names, ours and those of other schedulers; names that the core
  accepts: `node_name(name)`, `job_id(membership)`, `resource_name(name)`.
- `quantities.py`: `requests(quantities)` (rounded up) and `capacities(quantities)` (rounded down) in the units and
  by the resource names of the core; `documented(amounts)` for an update.
- `pods.py`: `used_by(pod)`, host ports included, for pods of any scheduler; `needs_of(pod, group, gated) -> Needs |
  tuple[NotHonoured, ...]`; `Needs.keys()` are the keys of an ask, `Needs.ports` the host ports that every node must
  offer once; `soft_fields(pod)` lists preferences that are not considered.
- `nodes.py`: `node_items(node, used, ports, sent)`: the items of an update that bring a node to its state.
- `groups.py`: `membership(pod)` from the pod alone; `GroupObjects` keeps Jobs, JobSets, PodGroups and PriorityClasses
  in short form (`followed()` says what to watch, `touched` is called with groups whose object changed);
  `group_of(membership, pods, objects, rules) -> Group` with `waits_for`, `is_gang`, `ask`, `stages`, `job_item`.
- `rooms.py`: free capacity of nodes according to the API server; `refusals.py`: nodes that a pod's own scheduler
  refused.
- `rules.py`: the mapping document for queues and users: `parse_rules(doc) -> Rules`.
- `calls.py`: the table of calls that the adapter makes, with which the ClusterRole is compared.
"""
