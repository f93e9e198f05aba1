// Requests to the server, and the session: its cookie is sent by the browser, its key is kept here.

import type { Caller } from "./types";

const KEY = "fairlead-session";
const BASE = "/api/v1";

export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly field = "",
  ) {
    super(message);
  }
}

export function sessionKey(): string {
  return localStorage.getItem(KEY) ?? "";
}

export function forgetSession(): void {
  localStorage.removeItem(KEY);
}

function headers(): Record<string, string> {
  return { "Fairlead-Session": sessionKey() };
}

async function problem(answer: Response): Promise<Refused> {
  try {
    const found = (await answer.json()) as { detail?: string; field?: string };
    return new Refused(answer.status, found.detail ?? answer.statusText, found.field);
  } catch {
    return new Refused(answer.status, answer.statusText || `status ${answer.status}`);
  }
}

let onEnd: () => void = () => undefined;

/** Call this when the session has ended. */
export function whenSessionEnds(call: () => void): void {
  onEnd = call;
}

async function send(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const init: RequestInit = { method, headers: headers(), cache: "no-store", credentials: "same-origin" };
  if (signal) init.signal = signal;
  if (body !== undefined) init.body = JSON.stringify(body);
  const answer = await fetch(BASE + path, init);
  if (answer.status === 401) onEnd();
  if (!answer.ok) throw await problem(answer);
  return answer;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await send("GET", path, undefined, signal)).json() as Promise<T>;
}

export async function post<T>(path: string, body?: unknown): Promise<T> {
  return (await send("POST", path, body)).json() as Promise<T>;
}

export async function put<T>(path: string, body: unknown): Promise<T> {
  return (await send("PUT", path, body)).json() as Promise<T>;
}

export async function logIn(token: string): Promise<Caller> {
  const answer = await fetch(`${BASE}/session`, {
    method: "POST",
    headers: { Authorization: `Bearer ${token.trim()}` },
    credentials: "same-origin",
  });
  if (!answer.ok) throw await problem(answer);
  const found = (await answer.json()) as Caller & { key: string };
  localStorage.setItem(KEY, found.key);
  return found;
}

export async function logOut(): Promise<void> {
  try {
    await send("DELETE", "/session");
  } finally {
    forgetSession();
  }
}

export interface ServerEvent {
  kind: string;
  data: string;
}

/** Server-sent events. `EventSource` cannot send the key of the session, so the stream is read here. */
export async function* events(path: string, signal: AbortSignal): AsyncGenerator<ServerEvent> {
  const answer = await send("GET", path, undefined, signal);
  if (!answer.body) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop() ?? "";
    for (const part of parts) {
      let kind = "message";
      let data = "";
      for (const line of part.split("\n")) {
        if (line.startsWith("event: ")) kind = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      yield { kind: data ? kind : "alive", data };
    }
  }
}

/** Raw bytes of a log, as they arrive. */
export async function* bytes(path: string, signal: AbortSignal): AsyncGenerator<Uint8Array> {
  const answer = await send("GET", path, undefined, signal);
  const reader = answer.body?.getReader();
  while (reader) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

/** Save a file of the server on this machine. A link cannot, because it sends no key of the session. */
export async function save(path: string, name: string): Promise<void> {
  const address = URL.createObjectURL(await (await send("GET", path)).blob());
  const link = document.createElement("a");
  link.href = address;
  link.download = name.split("/").pop() ?? name;
  link.click();
  URL.revokeObjectURL(address);
}

export function query(values: Record<string, string | number | string[] | undefined>): string {
  const text = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) text.append(name, String(one));
  }
  const made = text.toString();
  return made ? `?${made}` : "";
}
