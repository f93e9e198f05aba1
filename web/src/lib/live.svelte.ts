// The live state of a partition: the map of nodes and the queues, followed by server-sent events.

import { events, get, query, Refused, sessionKey, whenSessionEnds } from "./api";
import type { Caller, MapChange, NodeMap, Queue } from "./types";

const SILENCE = 40_000; // the server sends a sign of life every 15 s
const TRACE = 120; // points of the small charts, at least 2 s apart

export type Link = "connecting" | "live" | "lost";

class Live {
  caller = $state<Caller | null>(null);
  /** False until it is known if there is a session. */
  known = $state(false);
  link = $state<Link>("connecting");
  problem = $state("");
  partition = $state("");
  partitions = $state<string[]>([]);
  /** The map is not reactive in depth: `version` grows when it changes. */
  map = $state.raw<NodeMap | null>(null);
  version = $state(0);
  queues = $state.raw<Queue[]>([]);
  /** The time of the server, which ticks each second. */
  clock = $state(Date.now() / 1000);
  /** Why the person has to log in again, if the session ended by itself. */
  ended = $state("");
  /** Seconds that the server's clock is ahead of this one. */
  ahead = $state(0);
  trace = $state.raw<{ at: number; cpu: number; gpu: number; queues: Record<string, number> }[]>([]);

  #stop: AbortController | null = null;
  #ticking = 0;

  get operator(): boolean {
    return this.caller !== null && this.caller.role !== "user";
  }

  now(): number {
    return Date.now() / 1000 + this.ahead;
  }

  /** The parameters of a request, with the partition. */
  at(values: Record<string, string | number | string[] | undefined> = {}): string {
    return query({ partition: this.partition, ...values });
  }

  async begin(): Promise<void> {
    whenSessionEnds(() => {
      if (this.caller) this.ended = "Your session has ended: it lasts 12 hours at most, and ends when its token expires or is revoked.";
      this.end();
    });
    clearInterval(this.#ticking);
    this.#ticking = setInterval(() => (this.clock = this.now()), 1000);
    if (!sessionKey()) {
      this.known = true;
      return;
    }
    try {
      this.caller = await get<Caller>("/whoami");
      await this.follow();
    } catch (error) {
      if (!(error instanceof Refused && error.status === 401)) {
        this.problem = error instanceof Refused ? error.message : "";
        this.link = "lost";
        setTimeout(() => void this.begin(), 2000);
      }
    }
    this.known = true;
  }

  end(): void {
    this.#stop?.abort();
    this.caller = null;
    this.map = null;
  }

  async choose(partition: string): Promise<void> {
    this.partition = partition;
    this.map = null;
    await this.follow();
  }

  /** Follow the partition until another one is chosen or the session ends. */
  async follow(): Promise<void> {
    this.#stop?.abort();
    const stop = (this.#stop = new AbortController());
    try {
      const known = await get<{ partitions: { name: string }[] }>("/partitions", stop.signal);
      this.partitions = known.partitions.map((each) => each.name);
      if (!this.partitions.includes(this.partition)) {
        this.partition = this.partitions.includes("default") ? "default" : (this.partitions[0] ?? "");
      }
    } catch {
      /* the loop below says what is wrong */
    }
    void this.#loop(stop);
  }

  async #loop(stop: AbortController): Promise<void> {
    let pause = 500;
    let silence = 0;
    while (!stop.signal.aborted) {
      const round = new AbortController();
      const over = (): void => round.abort();
      stop.signal.addEventListener("abort", over);
      const watch = (): void => {
        clearTimeout(silence);
        silence = setTimeout(over, SILENCE);
      };
      try {
        watch();
        await this.#read(round.signal);
        pause = 500;
        for await (const event of events(`/live${this.at({ after: this.map?.at ?? "" })}`, round.signal)) {
          watch();
          this.link = "live";
          this.problem = "";
          if (event.kind === "reset") await this.#read(round.signal);
          else if (event.kind === "change") this.#apply(JSON.parse(event.data) as MapChange);
          else if (event.kind === "end") break;
        }
        this.problem = "The server closed the connection.";
      } catch (error) {
        if (stop.signal.aborted) break;
        this.problem = error instanceof Refused ? error.message : "The server does not answer.";
      } finally {
        clearTimeout(silence);
        stop.signal.removeEventListener("abort", over);
      }
      if (stop.signal.aborted) break;
      this.link = "lost";
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(2 * pause, 5000);
    }
  }

  async #read(signal: AbortSignal): Promise<void> {
    const map = await get<NodeMap>(`/map${this.at()}`, signal);
    this.ahead = map.now - Date.now() / 1000;
    this.clock = map.now;
    this.map = map;
    this.queues = map.queues;
    this.link = "live";
    this.problem = "";
    this.version++;
    this.#note();
  }

  #apply(change: MapChange): void {
    const map = this.map;
    if (!map) return;
    map.at = change.at;
    map.now = change.now;
    map.ready = change.ready;
    for (const [at, row] of change.rows) map.rows[at] = row;
    if (change.queues.length) {
      const changed = new Map(change.queues.map((queue) => [queue.path, queue]));
      const kept = this.queues.map((queue) => changed.get(queue.path) ?? queue);
      const paths = new Set(kept.map((queue) => queue.path));
      const added = change.queues.filter((queue) => !paths.has(queue.path));
      this.queues = added.length ? [...kept, ...added].sort((a, b) => (a.path < b.path ? -1 : 1)) : kept;
    }
    this.version++;
    this.#note();
  }

  #note(): void {
    const map = this.map;
    if (!map) return;
    const last = this.trace.at(-1);
    if (last && map.now - last.at < 2) return;
    const sums = totals(map);
    const queues = Object.fromEntries(this.queues.map((queue) => [queue.path, queue.use_percent]));
    const point = { at: map.now, cpu: sums.cpuPercent, gpu: sums.gpuPercent, queues };
    this.trace = [...this.trace, point].slice(-TRACE);
  }
}

export interface Totals {
  nodes: number;
  states: number[];
  held: number;
  avoided: number;
  cpus: number;
  cpuUsed: number;
  cpuPercent: number;
  gpus: number;
  gpuUsed: number;
  gpuPercent: number;
  /** GPUs of which only a part is in use. */
  split: number;
  tasks: number;
}

export function totals(map: NodeMap): Totals {
  const sums: Totals = {
    nodes: map.rows.length,
    states: map.states.map(() => 0),
    held: 0,
    avoided: 0,
    cpus: 0,
    cpuUsed: 0,
    cpuPercent: 0,
    gpus: 0,
    gpuUsed: 0,
    gpuPercent: 0,
    split: 0,
    tasks: 0,
  };
  map.rows.forEach((row, at) => {
    const [state, flags, cpu, , tasks, devices] = row;
    sums.states[state] = (sums.states[state] ?? 0) + 1;
    if (flags & 1) sums.held++;
    if (flags & 2) sums.avoided++;
    const name = map.states[state];
    sums.tasks += tasks;
    if (name === "lost" || name === "disabled") return;
    const has = map.cpus[at] ?? 0;
    sums.cpus += has;
    sums.cpuUsed += (has * cpu) / 100;
    for (const device of devices) {
      const used = tenths(device);
      sums.gpus++;
      sums.gpuUsed += used / 10;
      if (used > 0 && used < 10) sums.split++;
    }
  });
  sums.cpuPercent = sums.cpus ? (100 * sums.cpuUsed) / sums.cpus : 0;
  sums.gpuPercent = sums.gpus ? (100 * sums.gpuUsed) / sums.gpus : 0;
  return sums;
}

export function tenths(device: string): number {
  return device === "A" ? 10 : device.charCodeAt(0) - 48;
}

export const live = new Live();
