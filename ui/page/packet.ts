// A packet's way between two pods: asked for, shown step by step, and drawn over the map.

import { post } from "./api";
import { h, plural } from "./dom";
import { finding } from "./details";
import type { Way } from "./map";
import type { Drop, Finding, Model, Sighting, Trace, TraceStep, Walk, WalkStep } from "./model";

interface Step { host: string; dev: string; title: string; header: string; layers?: string[]; entries: string[]; lost: boolean }

/** Packet is the packet that is being followed. */
export class Packet {
  from = "";
  to = "";
  walk: Walk | null = null;
  trace: Trace | null = null;
  step = 0;
  busy = false;
  error = "";
  ipv6 = false;
  live = false; // real packets are watched, too

  constructor(private model: Model, private changed: () => void) {}

  /** Takes a pod that was pointed at: first the source, then the target. */
  point(id: string) {
    if (!this.from || this.to) {
      this.from = id;
      this.to = "";
      this.clear();
    } else if (id !== this.from) {
      this.to = id;
      void this.follow();
    }
    this.changed();
  }

  clear() {
    this.walk = this.trace = null;
    this.error = "";
    this.step = 0;
  }

  /** Follows a packet: in a lab it is captured; where it is lost, or elsewhere, the tables say why. Real packets of the two are watched instead if that is asked for. */
  async follow() {
    this.clear();
    this.busy = true;
    this.changed();
    const ask = { from: this.from, to: this.to };
    let walk: Walk | null = null, trace: Trace | null = null; // shown together: updates draw the page meanwhile
    try {
      if (this.model.view.can.walk && !this.live && !this.to.startsWith("service/")) {
        walk = await post<Walk>("walk", { ...ask, family: this.ipv6 ? "ipv6" : undefined });
      }
      if (!walk?.arrived) trace = await post<Trace>("trace", { ...ask, live: this.live });
    } catch (e) {
      this.error = (e as Error).message;
    }
    this.walk = walk;
    this.trace = trace;
    this.busy = false;
    this.step = this.lost() ? this.steps().length - 1 : 0;
    this.changed();
  }

  lost(): boolean {
    if (this.walk) return !this.walk.arrived;
    const t = this.trace;
    return !!t && !!(t.stopped || t.lost?.length || t.problem || t.live?.failed && this.seen());
  }

  steps(): Step[] {
    const steps = this.walk ? (this.walk.steps ?? []).map(ofWalk) : this.seen() ?? (this.trace?.there ?? []).map(ofTrace);
    const last = steps.at(-1);
    if (last && this.lost()) last.lost = true;
    return steps;
  }

  /** Returns where real packets were seen, and dropped; null if none was. */
  private seen(): Step[] | null {
    const { there, drops } = this.trace?.live ?? {};
    return there?.length ? [...there.map(ofSighting), ...(drops ?? []).map(ofDrop)] : null;
  }

  /** Why it is lost, the surest first. */
  causes(): Finding[] {
    const found = this.trace?.lost ?? [];
    const stop = this.trace?.stopped;
    if (!stop || found.some((f) => f.fix === stop.fix)) return found;
    return [{ id: "stopped", title: `It stops at the ${stop.place} of ${stop.node}`, place: stop.node, object: stop.entry, expected: "", actual: stop.stops ?? "", why: "", fix: stop.fix ?? "", command: stop.command, severity: "" }, ...found];
  }

  way(): Way | null {
    const points = this.steps();
    return points.length ? { points, step: this.step, lost: this.lost() } : null;
  }

  go(by: number) {
    this.step = Math.max(0, Math.min(this.steps().length - 1, this.step + by));
    this.changed();
  }
}

function ofWalk(s: WalkStep): Step {
  const layers = s.frame.layers.map((l) => [l.kind, l.from && `${l.from} → ${l.to}`, l.info].filter(Boolean).join(" "));
  return { host: s.host, dev: s.dev, title: `${s.host} ${s.out ? "sends on" : "receives on"} ${s.dev}`, header: "", layers, entries: (s.entries ?? []).map((e) => `${e.table}: ${e.text}`), lost: false };
}

function ofTrace(s: TraceStep): Step {
  return { host: s.node, dev: s.place, title: `${s.node}: ${s.place}`, header: "", entries: [s.entry, s.stops ?? ""].filter(Boolean), lost: false };
}

function ofSighting(s: Sighting): Step {
  return { host: s.host, dev: s.dev, title: `${s.host} ${s.out ? "sends on" : "receives on"} ${s.dev}: ${plural(s.packets, "packet")}`, header: s.frame, entries: [], lost: false };
}

function ofDrop(d: Drop): Step {
  const cause = [d.reason, d.function && "in " + d.function, d.dev && "on " + d.dev].filter(Boolean).join(" ");
  return { host: d.host, dev: d.dev, title: `${d.host} drops ${plural(d.packets, d.back ? "reply" : "packet")}`, header: d.frame, entries: [cause], lost: false };
}

/** Shows the form, and the steps of the packet that was followed. */
export function panel(model: Model, p: Packet, share: HTMLElement): HTMLElement {
  const steps = p.steps();
  const list = h("ol", { class: "steps", "data-steps": true }, ...steps.map((s, i) => h("li", { "data-step": i, "data-lost": s.lost, class: (i === p.step ? "now" : "") + (s.lost ? " lost" : "") },
    h("button", { type: "button", "aria-current": i === p.step ? "step" : undefined, onclick: () => p.go(i - p.step) }, s.lost ? `${s.title} – lost here` : s.title),
    i === p.step && s.header ? h("pre", { tabindex: 0 }, s.header) : null,
    i === p.step && s.layers ? nested(s.layers) : null,
    i === p.step || s.lost ? h("ul", { class: "entries" }, ...s.entries.map((e) => h("li", {}, h("code", {}, e)))) : null)));
  const said = p.error || (p.busy ? p.live ? "Watching real packets for three seconds…" : "Following the packet…" : verdict(p));
  const box = h("section", { class: "packet", "aria-label": "A packet's way" }, h("h2", {}, "A packet’s way"), model.view.can.trace ? form(model, p) : null,
    h("p", { role: "status", class: p.error || p.lost() ? "error" : "" }, said));
  if (steps.length) {
    const [first, ...rest] = p.causes();
    if (first) box.append(finding(first));
    if (rest.length) box.append(h("details", {}, h("summary", {}, `${rest.length} more of what probes show`), ...rest.map(finding)));
    box.append(h("div", { class: "bar" },
      h("button", { type: "button", disabled: p.step === 0, onclick: () => p.go(-1), "data-previous": true }, "Previous"),
      h("button", { type: "button", disabled: p.step >= steps.length - 1, onclick: () => p.go(1), "data-next": true }, "Next"), share), list);
  }
  return box;
}

/** Shows a frame as it is: each header holds the next. */
function nested(layers: string[]): HTMLElement {
  const held = layers.reduceRight<HTMLElement | null>((inner, text) => h("div", { class: "layer" + (/^(vxlan|ipip|udp .*8472|wireguard)/.test(text) ? " tunnel" : "") }, h("code", {}, text), inner), null);
  return h("div", { class: "frame", role: "group", "aria-label": "The packet’s headers, the outer ones first" }, held);
}

function verdict(p: Packet): string {
  if (p.walk) return p.walk.arrived ? `It arrives at ${p.walk.to}; ${p.walk.reply}.` : `It does not arrive at ${p.walk.to}: ${p.walk.reply}.`;
  if (p.trace?.live) return `Real packets, ${p.trace.live.seconds.toFixed(1)} seconds: ${p.trace.live.verdict}`;
  if (p.trace) return p.lost() ? p.trace.problem?.text ?? "It does not arrive." : "Nothing stops it, nor its answer.";
  return "Point at two pods on the map, or choose them here.";
}

function form(model: Model, p: Packet): HTMLElement {
  const input = (id: "from" | "to", label: string) => h("label", { for: id }, label,
    h("input", { id, name: id, list: "ends", value: p[id], autocomplete: "off", spellcheck: "false", required: true }));
  const f = h("form", { class: "ends" }, input("from", "From"), input("to", "To"),
    h("datalist", { id: "ends" }, ...model.places.pods.map((o) => h("option", { value: o.id })), ...model.places.services.map((o) => h("option", { value: o.id }))),
    h("label", { class: "choice" }, h("input", { id: "live", type: "checkbox", checked: p.live }), "Watch real packets, too, for three seconds"),
    h("button", { id: "go", type: "submit", disabled: p.busy }, "Follow the packet"));
  f.addEventListener("submit", (event) => {
    event.preventDefault();
    const data = new FormData(f);
    p.from = String(data.get("from"));
    p.to = String(data.get("to"));
    void p.follow();
  });
  f.addEventListener("input", (event) => {
    const e = event.target as HTMLInputElement;
    if (e.id === "from" || e.id === "to") p[e.id] = e.value;
    if (e.id === "live") p.live = e.checked;
  });
  return f;
}
