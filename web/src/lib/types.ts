// The answers of the API that the page reads. `make generate` writes this file.

export interface Ask {
  job: string;
  stage: string;
  kind: string;
  count: number;
  asked: number;
  waiting_since: number;
  name: string;
  user: string;
  reason: string;
}

/** The end of an attempt of some tasks. In Python, `tasks` are their indices one by one. */
export interface Attempt {
  stage: string;
  indices: number[];
  attempt: number;
  outcome: string;
  node: string;
  exit_code: number | null;
  reason: string;
  started: number | null;
  ended: number;
  cpu_seconds: number | null;
  most_memory: number | null;
}

/** Tasks of one attempt on a node, with their start and their end; `ended` is null while they run. */
export interface Bar {
  node: string;
  job: string;
  name: string;
  stage: string;
  user: string;
  queue: string;
  tasks: number;
  resources: Record<string, number>;
  started: number;
  ended: number | null;
  outcome: string;
}

/** How long a job waited for what. The parts add up to the wait, to the microsecond. */
export interface Bill {
  job: string;
  submitted: number;
  since: number;
  waited: number;
  causes: WaitedFor[];
  partly: WaitedFor[];
}

/** User, groups, role and scope of the caller's token. */
export interface Caller {
  user: string;
  groups: string[];
  role: "user" | "operator" | "admin" | "join" | "manager";
  scope: Scope;
}

/** What the next cycle would do with a job, if it were submitted. */
export interface DryRun {
  partition: string;
  queue: string;
  starts: boolean;
  never: string;
  sentence: string;
  placements: Placement[];
  waiting: Waiting[];
  eta: Eta | null;
}

/** The predicted start of a job, from several simulated futures with random run times and arrivals. */
export interface Eta {
  job: string;
  state: string;
  started: number | null;
  start: number | null;
  median: number | null;
  earliest: number | null;
  latest: number | null;
  not_before: number | null;
  note: string;
  text: string;
}

/** Nodes reserved for one job while its capacity arrives: other tasks stop for it there, or the nodes were ordered
 * for it and it waits for the other nodes of the order.
 */
export interface Held {
  job: string;
  stage: string;
  tasks: number;
  nodes: string[];
  since: number;
  stopping: number;
  ordered: boolean;
  held: Record<string, Record<string, number>>;
}

/** Nodes kept free of new work for a job: it has waited too long, or loans are to return to its queue there. */
export interface Hold {
  job: string;
  stage: string;
  tasks: number;
  nodes: string[];
  since: number;
  until: number | null;
  held: Record<string, Record<string, number>>;
}

export interface Job {
  id: string;
  number: number;
  partition: string;
  name: string;
  user: string;
  queue: string;
  state: string;
  priority: number;
  labels: Record<string, string>;
  after: string[];
  submitted: number;
  waiting_since: number | null;
  ended: number | null;
  reason: string;
  waits_for: string;
  stages: Stage[];
  matched: string | null;
  forgotten: boolean;
  held_by: string;
}

/** A lane. `first` has the asks at its head that the caller may see. */
export interface Lane {
  queue: string;
  shape: string;
  asks: number;
  tasks: number;
  first: Ask[];
}

/** The use of a leaf queue beyond its entitlement, in percent of the partition, and when it returns if no other task
 * of the queue starts: by the estimates and time limits of its running tasks.
 */
export interface Loan {
  queue: string;
  percent: number;
  returns: LoanReturn[];
  unknown_percent: number;
}

/** How much of a loan will have returned by a time, in percent of the partition. */
export interface LoanReturn {
  at: number;
  percent: number;
}

/** Changes of a map: rows by the index of their node, and queues. */
export interface MapChange {
  at: string;
  now: number;
  ready: boolean;
  rows: [number, NodeRow][];
  queues: Queue[];
}

/** A job with another predicted start. A wait is None if the job does not start or its start is not predictable. */
export interface MovedStart {
  job: string;
  name: string;
  user: string;
  queue: string;
  wait_before: number | null;
  wait_after: number | null;
  never_before: boolean;
  never_after: boolean;
}

/** The values of a label, and for each node the index of its value; -1 if the node lacks the label. */
export interface NodeGroups {
  values: string[];
  of: number[];
}

export interface NodeInfo {
  name: string;
  state: string;
  pool: string;
  manager: string;
  labels: Record<string, string>;
  taints: string[];
  users: string[];
  resources: Record<string, number>;
  used: Record<string, number>;
  devices: number[];
  tasks: number;
  avoided: boolean;
  disconnected: number | null;
  credential: "" | "valid" | "expired" | "revoked";
  credential_expires: number | null;
  reason: string;
  until: number | null;
  closes: number | null;
  held_for: string[];
  held_for_others: number;
  held: Record<string, number>;
}

/** All nodes of a partition, in columns, and the queue tree. Pass `at` to `GET /live` for later changes. */
export interface NodeMap {
  at: string;
  partition: string;
  now: number;
  ready: boolean;
  states: string[];
  names: string[];
  cpus: number[];
  memory: number[];
  pools: NodeGroups;
  labels: Record<string, NodeGroups>;
  rows: NodeRow[];
  queues: Queue[];
}

/** The live tasks of one stage on one node that are in the same state. `job`, `name`, `stage` and `user` are empty
 * if the caller may not see the job.
 */
export interface NodeTasks {
  node: string;
  job: string;
  name: string;
  stage: string;
  user: string;
  state: string;
  tasks: number;
  indices: number[];
  resources: Record<string, number>;
  devices: number[];
  since: number;
  ends: number | null;
}

export interface OrderedFor {
  job: string;
  stage: string;
  tasks: number;
}

/** A machine of the provider that is neither a node nor ordered. Fairlead does not remove it; an operator must. */
export interface Orphan {
  name: string;
  note: string;
}

/** A finished job. `tasks` counts its tasks by outcome. */
export interface PastJob {
  id: string;
  number: number;
  partition: string;
  name: string;
  user: string;
  queue: string;
  state: string;
  reason: string;
  submitted: number;
  ended: number;
  tasks: Record<string, number>;
  started: number | null;
  cpu_seconds: number | null;
  ran_seconds: number | null;
  most_memory: number | null;
  labels: Record<string, string>;
  attempts: Attempt[];
  stages: PastStage[];
}

/** A map at a time in the past. `map` is missing for times before `since`, where the journal begins. */
export interface PastMap {
  since: number;
  map: NodeMap | null;
}

/** Queues at several times, by path, from `since` on, where the journal begins. */
export interface PastQueues {
  since: number;
  queues: Record<string, QueuePast>;
}

/** What each task of a stage of a finished job asked for. */
export interface PastStage {
  name: string;
  count: number;
  resources: Record<string, number>;
  time_limit: number | null;
}

/** Tasks of a stage that would start on a node. */
export interface Placement {
  stage: string;
  node: string;
  tasks: number;
}

/** A pool. `use` is null until the partition is ready. */
export interface Pool {
  name: string;
  partition: string;
  provider: string;
  resources: Record<string, number>;
  labels: Record<string, string>;
  taints: string[];
  min: number;
  max: number | null;
  min_idle: number;
  max_idle: number;
  idle_for: number;
  cost: number;
  min_free: Record<string, number>;
  use: PoolUse | null;
  paused: boolean;
  paused_until: number | null;
  problem: string;
  grew: number | null;
  shrank: number | null;
  orders: PoolOrder[];
  leaving: string[];
  orphans: Orphan[];
}

/** Ordered nodes. `jobs` are the jobs that need them, of those that the caller may see. */
export interface PoolOrder {
  order: number;
  cause: string;
  since: number;
  nodes: string[];
  tasks: number;
  jobs: OrderedFor[];
}

/** Numbers of nodes. `available` nodes are empty and accept any work, so disabled, held and promised nodes do not
 * count. `pending` is the number that waiting work needs. `idle` is the difference, negative if nodes are missing.
 * `ordered` nodes have not arrived yet.
 */
export interface PoolUse {
  ready: boolean;
  total: number;
  available: number;
  pending: number;
  idle: number;
  ordered: number;
  disabled: number;
}

/** What came of the starts that were foretold. The first promise for each job counts, unless a field says "last". */
export interface PromisedStarts {
  since: number;
  scored: number;
  kept: number;
  earlier: number;
  later: number;
  changed: number;
  ended: number;
  open: number;
  median_error: number | null;
  last_kept: number;
  last_median_error: number | null;
  stretch: number;
  text: string;
}

export interface Queue {
  path: string;
  state: string;
  leaf: boolean;
  order: string;
  share: number | null;
  guarantee: Record<string, number>;
  limit: Record<string, number> | null;
  used: Record<string, number>;
  jobs: number;
  running: number;
  asks: number;
  entitlement_percent: number;
  use_percent: number;
  loan_percent: number;
  past_percent: number;
  users: QueueUser[];
}

/** A queue at several times: its share, and entitlement, use and loan in percent of the partition. */
export interface QueuePast {
  times: number[];
  share: (number | null)[];
  entitlement: number[];
  use: number[];
  loan: number[];
}

/** The use of one user in a queue where users take turns, as parts of the partition. */
export interface QueueUser {
  user: string;
  use_percent: number;
  past_percent: number;
}

/** Steps that together let the tasks start in the next cycle. Without steps, they start in the next cycle anyway. */
export interface Remedy {
  text: string;
  operator: boolean;
  steps: Step[];
}

/** What a token may not do, though its user may. */
export interface Scope {
  read_only: boolean;
  queue: string;
  budget: Record<string, number>;
  left: Record<string, number>;
  confirm: boolean;
}

export interface Stage {
  name: string;
  count: number;
  min: number;
  resources: Record<string, number>;
  command: string[];
  waiting: number;
  assigned: number;
  running: number;
  stopping: number;
  ended: Record<string, number>;
  array: string;
  parameters: string[];
  throttle: number | null;
  time_limit: number | null;
  tasks: TaskGroup[];
  pty: boolean;
}

/** A step of a remedy. `code` says what to do; which other fields have a value depends on it. */
export interface Step {
  code: string;
  text: string;
  operator: boolean;
  node: string;
  nodes: number;
  tasks: number;
  jobs: string[];
  stage: string;
  resources: Record<string, number>;
  labels: Record<string, string>;
  pool: string;
  taint: string;
  queue: string;
  user: string;
  group: string;
  value: number | null;
}

export interface Task {
  stage: string;
  index: number;
  state: string;
  attempt: number;
  tries_used: number;
  node: string | null;
  devices: number[];
  exit_code: number | null;
  reason: string;
  note: string;
  started: number | null;
  parameters: Record<string, string>;
}

/** Tasks of a stage in the same state. Those that are assigned, running or stopping are on the same node. */
export interface TaskGroup {
  indices: number[];
  state: string;
  attempt: number;
  node: string;
  started: number | null;
  exit_code: number | null;
  reason: string;
}

/** Tasks that ran in a period. `complete` is false if there were too many: then the oldest are left out. */
export interface Timeline {
  since: number;
  until: number;
  bars: Bar[];
  complete: boolean;
}

/** The waits of a group of jobs. */
export interface Waited {
  group: Record<string, string>;
  waited: number;
  causes: WaitedFor[];
}

/** A part of a wait. */
export interface WaitedFor {
  cause: string;
  of: string;
  text: string;
  seconds: number;
}

/** Why tasks of a stage wait. `position` 0 is the first in its lane; `code` is the machine-readable reason. */
export interface Waiting {
  stage: string;
  kind: string;
  count: number;
  position: number | null;
  code: string;
  reason: string;
  jobs_ahead: number;
  tasks_ahead: number;
  then_code: string;
  then: string;
  text: string;
  at_least: boolean;
  remedies: Remedy[];
  comes: string[];
  no_hold: string;
}

export interface Waits {
  by: string[];
  since: number;
  until: number;
  rows: Waited[];
}

/** The effect of a supposed change. Waits are in seconds: from now, or since the submission in a replay. */
export interface WhatIf {
  compared: number;
  earlier: number;
  later: number;
  same: number;
  no_longer: number;
  never: number;
  unknown: number;
  jobs: MovedStart[];
  mean_wait_before: number | null;
  mean_wait_after: number | null;
  utilisation_before: number | null;
  utilisation_after: number | null;
  note: string;
  waits_before: WaitedFor[];
  waits_after: WaitedFor[];
}

/** The changing properties of a node of a map, as an array. */
export type NodeRow = [state: number, flags: number, cpu: number, memory: number, tasks: number, devices: string];
