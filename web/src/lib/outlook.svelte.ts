// Why jobs wait and when they start: one question for all jobs of a list.

import { post } from "./api";
import { plain } from "./format";
import { live } from "./live.svelte";
import { COSTLY, Poll } from "./poll.svelte";
import type { Eta } from "./types";

const MOST = 200; // jobs in one question
const PAUSE = 4_000; // milliseconds between two questions about other jobs

export class Outlook {
  readonly #starts: Poll<Map<string, Eta>>;
  readonly #sentences: Poll<Record<string, string>>;

  /** `waiting` returns the ids of the listed jobs with tasks that wait, `pending` of those that have not started. */
  constructor(waiting: () => string[], pending: () => string[]) {
    this.#starts = new Poll(async () => {
      const jobs = pending().slice(0, MOST);
      if (!jobs.length) return new Map();
      const answer = await post<{ etas: Eta[] }>(`/eta${live.at()}`, { jobs });
      return new Map(answer.etas.map((eta) => [eta.job, eta]));
    }, COSTLY);
    this.#sentences = new Poll(async () => {
      const jobs = waiting().slice(0, MOST);
      return jobs.length ? (await post<{ sentences: Record<string, string> }>(`/explain${live.at()}`, { jobs })).sentences : {};
    }, COSTLY);
    for (const [poll, jobs] of [[this.#starts, pending], [this.#sentences, waiting]] as const) {
      let asked = "";
      $effect(() => {
        const wanted = jobs().join(" ");
        if (wanted === asked) return;
        asked = wanted;
        poll.soon(PAUSE);
      });
    }
  }

  eta(job: string): Eta | undefined {
    return this.#starts.value?.get(job);
  }

  /** The sentence about a job without its subject; until it is known, `short`. */
  reason(job: string, short: string): string {
    const sentence = this.#sentences.value?.[job];
    if (!sentence) return plain(short);
    const said = plain(sentence.startsWith(`job ${job}`) ? sentence.slice(`job ${job}`.length).replace(/^:? /, "") : sentence);
    return said.charAt(0).toUpperCase() + said.slice(1);
  }
}
