// Values as text for people.

import type { Eta } from "./types";

/** Text that a user gave, with control characters made visible and characters that turn text around taken out. */
export function plain(text: string): string {
  return [...text]
    .map((char) => {
      const code = char.codePointAt(0) ?? 0;
      if (code < 0x20) return String.fromCodePoint(0x2400 + code);
      if (code === 0x7f) return "\u2421";
      const hidden = (code >= 0x80 && code < 0xa0) || (code >= 0x200b && code <= 0x200f);
      const turning = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || code === 0xfeff;
      return hidden || turning ? "\ufffd" : char;
    })
    .join("");
}

export function duration(seconds: number): string {
  const whole = Math.max(0, seconds);
  if (whole < 60) return `${Math.floor(whole)} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 36_000) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  if (whole < 2 * 86_400) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86_400)} d`;
}

export function clock(time: number): string {
  return new Date(time * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

export function moment(time: number): string {
  return new Date(time * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

export function number(value: number): string {
  return value.toLocaleString("en-US", { maximumFractionDigits: 1 });
}

export function percent(value: number): string {
  return `${value >= 10 || value === 0 ? Math.round(value) : value.toFixed(1)} %`;
}

export function plural(count: number, noun: string): string {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** A memory size. */
export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at++;
  }
  return `${number(value)} ${units[at]}`;
}

/** The word for an amount of a resource. */
export function noun(resource: string, value = 2): string {
  return resource === "cpu" || resource === "gpu" ? `${resource.toUpperCase()}${value > 1 ? "s" : ""}` : resource;
}

/** An amount of a resource without its name. */
export function size(resource: string, value: number): string {
  return resource === "memory" ? bytes(value) : number(value);
}

export function amounts(of: Record<string, number>): string {
  return Object.entries(of)
    .map(([name, value]) => `${size(name, value)} ${name === "memory" ? "of memory" : noun(name, value)}`)
    .join(", ");
}

/** The sum of amounts that are given by node. */
export function total(byNode: Record<string, Record<string, number>>): Record<string, number> {
  const sums: Record<string, number> = {};
  for (const node of Object.values(byNode)) {
    for (const [name, value] of Object.entries(node)) sums[name] = (sums[name] ?? 0) + value;
  }
  return sums;
}

/** Indices of tasks, such as 0–7, 9. */
export function spans(indices: number[]): string {
  const parts: string[] = [];
  for (let i = 0; i < indices.length; i++) {
    const from = indices[i]!;
    while (indices[i + 1] === indices[i]! + 1) i++;
    parts.push(from === indices[i] ? String(from) : `${from}–${indices[i]}`);
  }
  return parts.join(", ");
}

/** When a job starts, and how sure that is. */
export function starting(eta: Eta | undefined, now: number): { text: string; sure: string } {
  const wait = (time: number): string => duration(Math.max(0, time - now));
  if (!eta) return { text: "", sure: "" };
  if (eta.start === null) {
    if (eta.not_before !== null && eta.not_before > now) return { text: `not within ${wait(eta.not_before)}`, sure: "" };
    return { text: eta.text.includes("can never run") ? "never, as it is" : "not known", sure: "" };
  }
  if (eta.start - now < 1 && (eta.latest ?? Infinity) - now < 1) return { text: "now", sure: "" };
  const from = eta.earliest === null || eta.earliest - now < 1 ? "now" : wait(eta.earliest);
  const to = eta.latest === null ? "" : wait(eta.latest);
  const open = from === "now" ? "quite uncertain" : `90 %: ${from} or later`;
  const sure = eta.latest === null ? open : from === to ? "" : `90 %: ${from} to ${to}`;
  return { text: `in ${wait(eta.start)}`, sure };
}
