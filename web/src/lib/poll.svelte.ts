// A document that is read again when the cluster changes, at most every few seconds unless told otherwise, and at
// least every 20.

import { live } from "./live.svelte";

const OFTEN = 2_500;
const SELDOM = 20_000;

/** Milliseconds between two looks at what costs the server more: the future, the past, and remedies. */
export const COSTLY = 30_000;

export class Poll<T> {
  value = $state.raw<T | null>(null);
  problem = $state("");
  loading = $state(false);

  #asked = 0;
  #timer = 0;
  #stop: AbortController | null = null;

  constructor(
    readonly read: (signal: AbortSignal) => Promise<T>,
    readonly often = OFTEN,
  ) {
    $effect(() => {
      void live.version;
      this.#later();
    });
    $effect(() => {
      const seldom = setInterval(() => void this.now(), Math.max(SELDOM, often));
      return () => {
        clearInterval(seldom);
        clearTimeout(this.#timer);
        this.#stop?.abort();
      };
    });
  }

  #later(): void {
    if (this.#timer) return;
    const wait = Math.max(0, this.#asked + this.often - Date.now());
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      void this.now();
    }, wait);
  }

  /** Read again soon, because something else is wanted now; at most every `pause` milliseconds. */
  soon(pause: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      void this.now();
    }, Math.max(50, this.#asked + pause - Date.now()));
  }

  async now(): Promise<void> {
    this.#asked = Date.now();
    this.#stop?.abort();
    const stop = (this.#stop = new AbortController());
    this.loading = true;
    try {
      this.value = await this.read(stop.signal);
      this.problem = "";
    } catch (error) {
      if (!stop.signal.aborted) this.problem = error instanceof Error ? error.message : String(error);
    } finally {
      if (this.#stop === stop) this.loading = false;
    }
  }
}
