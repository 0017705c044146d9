// What is known of the network. The types are the JSON of "twillctl status", doctor, trace, history and lab walk.

export interface View {
  kind: "lab" | "cluster" | "node" | "report"; name: string; version: string; titles?: Record<string, string>;
  can: { walk: boolean; trace: boolean; doctor: boolean; probe: boolean; history: boolean; faults: boolean; scripts: boolean; live: boolean };
}
export interface Peer { node: string; inSync: boolean; reason?: string; direct?: boolean; unreached?: string }

/** Says what is wrong with the way to a peer, empty if it is in sync and packets come back. */
export function wrongWith(p: Peer | undefined): string {
  if (!p) return "does not know it";
  return p.unreached ?? (p.inSync ? "" : p.reason ?? "out of sync");
}

/** Says from whom no answer comes to a node, first from what is no peer. */
export function unanswered(n: Status): string | undefined {
  return n.unreached?.[0] ?? n.peers?.find((p) => p.unreached)?.unreached;
}
export interface Status {
  node: string; backend: string; packets?: string; fastPath?: string; subnets: string[]; underlay: string[]; mtu: number;
  policies?: { enforced: boolean; error?: string; engines?: string[] }; agent: string; pid: number; version?: string; lastApply?: string; changes: number; errors: number; outOfSync: number;
  drops?: Record<string, number>; peers: Peer[] | null; unreached?: string[]; findings: string[] | null;
}
export interface Pod { id: string; node: string; addrs: string[] }
export interface Places {
  segments: { name: string; subnets: string[]; nodes: string[] }[];
  pods: Pod[]; services: { id: string; ports: number[] }[];
}
export interface Update { version: number; at: string; nodes: Status[]; gone: string[]; silent: string[]; places?: Places; error?: string }
export interface Finding {
  id: string; title: string; place: string; object: string; expected: string; actual: string; why: string; fix: string; command?: string; severity: string;
}
export interface Diagnosis { node: string; findings: Finding[] | null }
export interface Survey { first?: Finding; probes: { sent: number; lost: number; seconds: number }; lost: Finding[] | null; nodes: Diagnosis[]; silent?: string[] }
export interface TraceStep { node: string; place: string; entry: string; stops?: string; fix?: string; command?: string }
export interface Sighting { host: string; dev: string; out: boolean; packets: number; frame: string }
export interface Drop { host: string; dev: string; reason: string; function: string; back: boolean; packets: number; frame: string }
export interface Traffic {
  seconds: number; there: Sighting[] | null; back: Sighting[] | null; drops: Drop[] | null; noReasons?: string; failed: boolean; verdict: string;
}
export interface Trace {
  src: string; dst: string; there: TraceStep[] | null; back?: TraceStep[]; stopped?: TraceStep; lost: Finding[] | null;
  probes: { sent: number; lost: number }; live?: Traffic; problem?: { text?: string };
}
export interface WalkStep {
  host: string; dev: string; out: boolean;
  frame: { layers: { kind: string; from?: string; to?: string; info?: string }[]; length: number };
  entries: { table: string; text: string }[] | null;
}
export interface Walk { from: string; to: string; src: string; dst: string; steps: WalkStep[] | null; arrived: boolean; reply: string }
export interface HistoryEvent { at: string; kind: string; peer?: string; text: string; count?: number; took?: number }
export interface History { nodes: { node: string; since: string; dropped?: number; events: HistoryEvent[] | null; error?: string }[]; silent?: string[] }
export interface Saved { at: string; view: View; update: Update; survey?: Survey; history?: History; trace?: Trace; walk?: Walk }

export type Health = "ok" | "repaired" | "drift" | "finding" | "unreachable";
export const words: Record<Health, string> = {
  ok: "in sync", repaired: "just repaired", drift: "out of sync", finding: "finding", unreachable: "unreachable",
};
export const signs: Record<Health, string> = { ok: "✓", repaired: "↻", drift: "≠", finding: "!", unreachable: "✕" };

/** How long a repair is shown, in milliseconds. */
const afterglow = 10_000;

/** Model is what the server said so far. */
export class Model {
  nodes = new Map<string, Status>();
  silent = new Map<string, string>();
  places: Places = { segments: [], pods: [], services: [] };
  error = "";
  connected = false;
  version = 0;
  private repaired = new Map<string, number>();
  private droppedBefore = new Map<string, number>();
  private listeners = new Set<() => void>();

  constructor(public view: View) {}

  /** Calls a function after each change, until the returned one is called. */
  follow(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  tell() { for (const l of [...this.listeners]) l(); }

  take(u: Update) {
    const first = this.version === 0 || u.version < this.version;
    if (first) this.nodes.clear();
    this.version = u.version;
    this.error = u.error ?? "";
    if (u.places) this.places = u.places;
    for (const n of u.nodes) {
      const old = this.nodes.get(n.node);
      if (old && n.pid === old.pid && n.changes > old.changes && n.outOfSync === 0 && samePeers(n, old)) this.glow(n.node);
      this.nodes.set(n.node, n);
      const all = drops(n);
      this.droppedBefore.set(n.node, Math.min(this.droppedBefore.get(n.node) ?? all, all));
    }
    for (const name of u.gone) this.nodes.delete(name);
    this.silent = new Map(u.silent.map((text) => {
      const at = text.indexOf(": ");
      return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 2)];
    }));
    this.tell();
  }

  connect(yes: boolean) {
    if (yes === this.connected) return;
    this.connected = yes;
    this.tell();
  }

  private glow(name: string) {
    this.repaired.set(name, Date.now() + afterglow);
    setTimeout(() => this.tell(), afterglow + 50);
  }

  names(): string[] {
    const all = new Set([...this.nodes.keys(), ...this.silent.keys()]);
    return [...all].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  }

  health(name: string): Health {
    const n = this.nodes.get(name);
    if (!n || this.silent.has(name)) return "unreachable";
    if (n.findings?.length || unanswered(n)) return "finding";
    if (n.outOfSync > 0 || n.peers?.some((p) => !p.inSync)) return "drift";
    return (this.repaired.get(name) ?? 0) > Date.now() ? "repaired" : "ok";
  }

  /** Returns how many packets a node's devices have dropped since this page was opened. */
  dropped(name: string): number {
    const n = this.nodes.get(name);
    return n ? drops(n) - (this.droppedBefore.get(name) ?? 0) : 0;
  }

  /** Says what is wrong with a node, in a few words. */
  trouble(name: string): string {
    const n = this.nodes.get(name);
    switch (this.health(name)) {
      case "unreachable": return this.silent.get(name) || "not reached";
      case "finding": return n!.findings?.map((id) => this.view.titles?.[id] ?? id).join("; ") || unanswered(n!)!;
      case "drift": return n!.peers?.find((p) => !p.inSync)?.reason ?? n!.outOfSync + " objects";
      default: return "";
    }
  }

  /** Returns the nodes that are not as they should be. */
  wrong(): string[] { return this.names().filter((n) => !["ok", "repaired"].includes(this.health(n))); }

  /** Is one sentence about all nodes. */
  sentence(): string {
    if (this.error) return this.error;
    const names = this.names();
    const wrong = this.wrong();
    const count = names.length + (names.length === 1 ? " node" : " nodes");
    if (wrong.length === 0) {
      if (names.length && [...this.nodes.values()].every(isBare)) return names.length + (names.length === 1 ? " machine" : " machines");
      const repaired = names.filter((n) => this.health(n) === "repaired");
      return repaired.length ? `${count}, all in sync; just repaired: ${repaired.join(", ")}` : `${count}, all in sync`;
    }
    const first = wrong[0]!;
    const more = wrong.length > 1 ? `, and ${wrong.length - 1} more` : "";
    return `${first}: ${this.health(first) === "finding" ? this.trouble(first) : `${words[this.health(first)]} (${this.trouble(first)})`}${more}; ${count}`;
  }

  pods(node: string): Pod[] { return this.places.pods.filter((p) => p.node === node); }
}

/** Reports whether a node is a machine alone, without an agent and a network of pods, as some lessons have them. */
export function isBare(n: Status): boolean { return !n.backend && n.subnets.length === 0 && !n.findings?.length; }

function drops(n: Status): number { return Object.values(n.drops ?? {}).reduce((sum, k) => sum + k, 0); }

function samePeers(a: Status, b: Status): boolean {
  const names = (s: Status) => (s.peers ?? []).map((p) => p.node).sort().join(" ");
  return names(a) === names(b);
}
