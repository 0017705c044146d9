// The last hour: what each node's agent remembers, as a strip and as a list.

import { get } from "./api";
import { button, h, s, short } from "./dom";
import type { History, HistoryEvent, Model } from "./model";

interface Mark extends HistoryEvent { node: string; when: number }

const kinds = ["start", "lease", "change", "repair", "error", "finding"];
const shapes: Record<string, (x: number, y: number) => string> = {
  start: (x, y) => `M${x - 4},${y - 5} L${x + 5},${y} L${x - 4},${y + 5} z`,
  lease: (x, y) => `M${x},${y - 5} L${x + 5},${y} L${x},${y + 5} L${x - 5},${y} z`,
  change: (x, y) => `M${x - 4},${y - 4} h8 v8 h-8 z`,
  repair: (x, y) => `M${x - 5},${y} a5,5 0 1,0 10,0 a5,5 0 1,0 -10,0`,
  error: (x, y) => `M${x - 5},${y - 3} l2,-2 l3,3 l3,-3 l2,2 l-3,3 l3,3 l-2,2 l-3,-3 l-3,3 l-2,-2 l3,-3 z`,
  finding: (x, y) => `M${x},${y - 6} L${x + 5.5},${y + 4} L${x - 5.5},${y + 4} z`,
};

/** Time is the strip; it asks for the history while it is shown. */
export class Time {
  readonly element = h("section", { class: "time", "aria-label": "The last hour" });
  private history: History | null;
  private error = "";
  private kind = "";
  private node = "";
  private around = 0; // a time in milliseconds; 0: all
  private timer = 0;

  constructor(private model: Model, saved: History | null) { this.history = saved; }

  show() {
    this.draw();
    if (!this.model.view.can.live || this.timer) return;
    void this.ask();
    this.timer = window.setInterval(() => void this.ask(), 5000);
  }

  hide() {
    clearInterval(this.timer);
    this.timer = 0;
  }

  private async ask() {
    try {
      this.history = await get<History>("history?since=1h");
      this.error = "";
    } catch (e) {
      this.error = (e as Error).message;
    }
    if (!this.element.contains(document.activeElement)) this.draw();
  }

  private marks(): Mark[] {
    const all = (this.history?.nodes ?? []).flatMap((n) => (n.events ?? []).map((e) => ({ ...e, node: n.node, when: Date.parse(e.at) })));
    return all.sort((a, b) => a.when - b.when);
  }

  private draw() {
    const marks = this.marks();
    const shown = marks.filter((m) => (!this.kind || m.kind === this.kind) && (!this.node || m.node === this.node) && (!this.around || Math.abs(m.when - this.around) <= 10_000));
    const silent = [...(this.history?.silent ?? []), ...(this.history?.nodes ?? []).filter((n) => n.error).map((n) => `${n.node}: ${n.error}`)];
    this.element.replaceChildren(h("h2", {}, "The last hour"),
      this.error ? h("p", { class: "error" }, this.error) : "",
      this.filters([...new Set(marks.map((m) => m.node))]),
      this.strip(marks),
      this.around ? h("p", {}, `Ten seconds before and after ${clock(this.around)}. `, h("button", { type: "button", onclick: () => this.focus(0) }, "Show all")) : "",
      h("ol", { class: "events" }, ...shown.slice(-300).reverse().map((m) => h("li", { class: m.kind },
        h("time", {}, clock(m.when)), " ", h("b", {}, m.node), " ", h("span", { class: "kind" }, m.kind), " ",
        m.peer ? m.peer + " " : "", m.text, m.count ? ` (${m.count})` : "", m.took ? ` in ${m.took.toFixed(1)} ms` : ""))),
      shown.length ? "" : h("p", {}, this.history ? "Nothing happened." : "Asking the agents…"),
      ...silent.map((text) => h("p", { class: "error" }, text)));
  }

  private focus(when: number) {
    this.around = when;
    this.draw();
  }

  private filters(nodes: string[]): HTMLElement {
    const select = (label: string, all: string[], value: string, set: (v: string) => void) => {
      const e = h("select", {}, h("option", { value: "" }, "all"), ...all.map((v) => h("option", { value: v, selected: v === value }, v)));
      e.addEventListener("change", () => { set(e.value); this.draw(); });
      return h("label", {}, label, " ", e);
    };
    return h("div", { class: "bar" }, select("What", kinds, this.kind, (v) => { this.kind = v; }), select("Node", nodes, this.node, (v) => { this.node = v; }));
  }

  private strip(marks: Mark[]): SVGElement {
    const all = [...new Set(marks.map((m) => m.node))];
    const lanes = all.slice(0, 24), width = Math.max(280, Math.min(1600, window.innerWidth - 48)), left = Math.min(110, width / 4), row = 26;
    const end = Math.max(Date.now() - (this.model.view.can.live ? 0 : 3.6e6), ...marks.map((m) => m.when)), begin = Math.min(end - 6e5, ...marks.map((m) => m.when));
    const x = (when: number) => left + 8 + (when - begin) / (end - begin) * (width - left - 16);
    const height = lanes.length * row + 26;
    const svg = s("svg", { class: "strip", viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Events of each node over time" });
    for (const [i, name] of lanes.entries()) {
      const y = i * row + row / 2;
      svg.append(s("line", { class: "lane", x1: left, x2: width, y1: y, y2: y }), s("text", { x: 0, y: y + 4 }, short(name, 14)));
      for (const m of marks.filter((m) => m.node === name).slice(-150)) {
        const mark = s("path", { class: "mark " + m.kind, d: (shapes[m.kind] ?? shapes.change!)(x(m.when), y) }, s("title", {}, `${clock(m.when)} ${m.text}`));
        svg.append(m.kind === "error" || m.kind === "finding" || m.kind === "repair" ? button(mark, `${clock(m.when)} ${m.node} ${m.kind}: ${m.text}; show what happened around it`, () => this.focus(m.when)) : mark);
      }
    }
    for (const part of [0, 0.5, 1]) {
      svg.append(s("text", { class: "note", x: x(begin + part * (end - begin)), y: height - 6, "text-anchor": ["start", "middle", "end"][part * 2]! }, clock(begin + part * (end - begin))));
    }
    return svg;
  }
}

function clock(when: number): string { return new Date(when).toLocaleTimeString(); }
