// Requests to the server, with the token of the address. A saved page makes none.

import type { Saved, Update } from "./model";

const kept = "twill-token";

/** Is what a saved page holds, or null on a page that is served. */
export function saved(): Saved | null {
  const e = document.getElementById("saved");
  return e ? JSON.parse(e.textContent ?? "") : null;
}

/** Takes the token out of the address, where people would copy it from. */
export function takeToken() {
  const text = location.hash.slice(1);
  if (!/^[\w-]{40,}$/.test(text)) return;
  sessionStorage.setItem(kept, text);
  history.replaceState(null, "", location.pathname);
}

/** The lab of the script that runs; empty: what the page was opened for. */
let of = "";
export function setOf(name: string) { of = name; }

function request(path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const address = of && !/^(fault|script|next|stop)/.test(path) ? path + (path.includes("?") ? "&" : "?") + "of=" + encodeURIComponent(of) : path;
  return fetch("/api/" + address, {
    method: body === undefined ? "GET" : "POST",
    body: body === undefined ? undefined : JSON.stringify(body),
    headers: { Authorization: "Bearer " + (sessionStorage.getItem(kept) ?? "") },
    signal,
  });
}

async function checked(path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const r = await request(path, body, signal);
  if (r.ok) return r;
  let text = r.statusText;
  try { text = (await r.json()).error; } catch { /* no JSON: the status says enough */ }
  throw new Error(text);
}

export async function get<T>(path: string): Promise<T> { return (await checked(path)).json(); }
export async function post<T>(path: string, body: unknown): Promise<T> { return (await checked(path, body)).json(); }
export async function postText(path: string, body: unknown): Promise<string> { return (await checked(path, body)).text(); }

/** Reads an answer of JSON values, a line each, until it ends. */
export async function stream<T>(path: string, body: unknown, each: (value: T) => void, signal?: AbortSignal, alive?: () => void) {
  const reader = (await checked(path, body, signal)).body!.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    alive?.();
    const lines = (rest + value).split("\n");
    rest = lines.pop()!;
    for (const line of lines) if (line) each(JSON.parse(line));
  }
}

/** Follows the updates until the signal ends it, and connects again when the server is back. */
export async function updates(take: (u: Update) => void, connected: (yes: boolean) => void, signal: AbortSignal) {
  for (let wait = 250; !signal.aborted; wait = Math.min(wait * 2, 5000)) {
    try {
      await stream<Update>("updates", undefined, take, signal, () => { connected(true); wait = 250; });
    } catch { /* shown as not connected */ }
    if (signal.aborted) return;
    connected(false);
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}
