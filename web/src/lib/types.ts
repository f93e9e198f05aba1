// The documents of the API, as far as the page reads them; src/fairlead/wire/api.py defines them.

export type NodeRow = [state: number, flags: number, cpu: number, memory: number, tasks: number, devices: string];

export interface Groups {
  values: string[];
  of: number[];
}

export interface QueueUser {
  user: string;
  use_percent: number;
  past_percent: number;
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

export interface NodeMap {
  at: string;
  partition: string;
  now: number;
  ready: boolean;
  states: string[];
  names: string[];
  cpus: number[];
  memory: number[];
  pools: Groups;
  labels: Record<string, Groups>;
  rows: NodeRow[];
  queues: Queue[];
}

export interface MapChange {
  at: string;
  now: number;
  ready: boolean;
  rows: [number, NodeRow][];
  queues: Queue[];
}

/** Live tasks of one stage on one node. Without a job id they belong to a job that the caller may not see. */
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

export interface Loan {
  queue: string;
  percent: number;
  returns: { at: number; percent: number }[];
  unknown_percent: number;
}

export interface NodeInfo {
  name: string;
  state: string;
  pool: string;
  labels: Record<string, string>;
  taints: string[];
  resources: Record<string, number>;
  used: Record<string, number>;
  devices: number[];
  tasks: number;
  avoided: boolean;
  reason: string;
  held_for: string[];
  held_for_others: number;
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
}

export interface Job {
  id: string;
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
  forgotten: boolean;
  held_by: string;
}

export interface Task {
  stage: string;
  index: number;
  state: string;
  attempt: number;
  node: string | null;
  devices: number[];
  exit_code: number | null;
  reason: string;
  note: string;
  started: number | null;
}

export interface PastJob {
  id: string;
  name: string;
  user: string;
  queue: string;
  state: string;
  reason: string;
  submitted: number;
  started: number | null;
  ended: number;
  tasks: Record<string, number>;
}

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

export interface Lane {
  queue: string;
  shape: string;
  asks: number;
  tasks: number;
  first: Ask[];
}

export interface Hold {
  job: string;
  stage: string;
  tasks: number;
  nodes: string[];
  since: number;
  until: number;
}

export interface Held {
  job: string;
  stage: string;
  tasks: number;
  nodes: string[];
  since: number;
  stopping: number;
  ordered: boolean;
}

export interface Pool {
  name: string;
  max: number | null;
  problem: string;
  paused: boolean;
  use: { total: number; available: number; pending: number; ordered: number } | null;
  orders: { order: number; cause: string; since: number; nodes: string[]; tasks: number; jobs: { job: string }[] }[];
}

export interface Waiting {
  stage: string;
  kind: string;
  count: number;
  position: number | null;
  reason: string;
  then: string;
  text: string;
  remedies: { text: string; operator: boolean }[];
}

/** When a job starts. Times are null where they cannot be told. */
export interface Eta {
  job: string;
  state: string;
  start: number | null;
  earliest: number | null;
  /** The start is between these with a probability of 90 %. */
  latest: number | null;
  not_before: number | null;
  note: string;
  text: string;
}

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

export interface Timeline {
  since: number;
  until: number;
  bars: Bar[];
  complete: boolean;
}

export interface WhatIf {
  compared: number;
  earlier: number;
  later: number;
  same: number;
  no_longer: number;
  never: number;
  unknown: number;
  jobs: { job: string; name: string; user: string; queue: string; wait_before: number | null; wait_after: number | null; never_before: boolean; never_after: boolean }[];
  mean_wait_before: number | null;
  mean_wait_after: number | null;
  note: string;
}

export interface QueuePast {
  times: number[];
  share: (number | null)[];
  entitlement: number[];
  use: number[];
  loan: number[];
}

export interface PastQueues {
  since: number;
  queues: Record<string, QueuePast>;
}

export interface PastMap {
  since: number;
  map: NodeMap | null;
}
