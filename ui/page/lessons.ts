// The lab as a classroom: faults to inject, and scripts to run step by step.

import { get, post, setOf, stream } from "./api";
import { h } from "./dom";
import type { Model } from "./model";

interface Fault { name: string; description: string; heals: boolean; lossless: boolean }
interface Script { name: string; title: string; tour: boolean; sections: string[] }
interface Line { line?: number; section?: string; command?: string; text?: string; lab?: string; waiting?: boolean; done?: boolean; error?: string; healed?: boolean; ms?: number }

/** Lessons are the faults and scripts of a lab. */
export class Lessons {
  readonly element = h("section", { class: "lessons", "aria-label": "Classroom" });
  private faults: Fault[] = [];
  private scripts: Script[] = [];
  private node = "";
  private log = h("ol", { class: "log", tabindex: 0, "aria-label": "What the script does" });
  private said = h("p", { role: "status" });
  private next = h("button", { type: "button", disabled: true, onclick: () => void post("next", {}) }, "Next step");
  private stop = h("button", { type: "button", disabled: true, onclick: () => void post("stop", {}) }, "Stop");
  private injury = h("output", { id: "injury" });

  constructor(private model: Model, private moved: () => void) {}

  async show() {
    if (this.faults.length) return;
    try {
      [this.faults, this.scripts] = await Promise.all([get<Fault[]>("faults"), get<Script[]>("scripts")]);
      this.draw();
    } catch (e) {
      this.element.replaceChildren(h("p", { class: "error" }, (e as Error).message));
    }
  }

  private draw() {
    const nodes = h("select", { id: "victim" }, ...this.model.names().map((n) => h("option", {}, n)));
    nodes.addEventListener("change", () => { this.node = nodes.value; });
    const list = h("ul", { class: "faults" });
    const search = h("input", { type: "search", id: "fault-search", "aria-label": "Search faults", placeholder: "search" });
    const fill = () => list.replaceChildren(...this.faults.filter((f) => (f.name + f.description).includes(search.value)).map((f) => h("li", {},
      h("button", { type: "button", "data-fault": f.name, onclick: () => void this.inject(f.name, nodes.value) }, f.name), ` ${f.description}${f.heals ? "" : " (no agent heals it)"}`)));
    search.addEventListener("input", fill);
    fill();
    const tours = this.scripts.filter((s) => s.tour), rest = this.scripts.filter((s) => !s.tour);
    this.element.replaceChildren(
      h("div", { class: "column" }, h("h2", {}, "Tours"), this.list(tours), h("h2", {}, "Scripts"), this.list(rest)),
      h("div", { class: "column" }, h("h2", {}, "The lesson"), h("div", { class: "bar" }, this.next, this.stop), this.said, this.log),
      h("div", { class: "column" }, h("h2", {}, "Break something"), this.injury, h("div", { class: "bar" }, h("label", { for: "victim" }, "on ", nodes), search), list));
  }

  private list(scripts: Script[]): HTMLElement {
    return h("ul", { class: "scripts" }, ...scripts.map((s) => h("li", {}, h("b", {}, s.name), ` ${s.title} `,
      h("button", { type: "button", "data-script": s.name, onclick: () => void this.run(s.name, true) }, "Step by step"), " ",
      h("button", { type: "button", onclick: () => void this.run(s.name, false) }, "Run"))));
  }

  private async inject(name: string, node: string) {
    this.injury.textContent = "…";
    const took = (l: Line) => {
      if (l.error) this.injury.textContent = l.error;
      else if (l.done) this.injury.textContent = l.healed ? `healed in ${l.ms!.toFixed(1)} ms` : l.text ?? "";
      else this.injury.textContent = l.text ?? "";
    };
    this.stop.disabled = false;
    try { await stream<Line>("fault", { name, node: this.node || node }, took); } catch (e) { this.injury.textContent = (e as Error).message; }
    this.stop.disabled = true;
  }

  private async run(name: string, step: boolean) {
    this.log.replaceChildren();
    this.said.textContent = `${name} is running.`;
    this.stop.disabled = false;
    let section = "";
    try {
      await stream<Line>("script", { name, step }, (l) => {
        if (l.lab) { setOf(l.lab); this.moved(); }
        if (l.section && l.section !== section) this.log.append(h("li", { class: "section" }, section = l.section));
        if (l.command) this.log.append(h("li", { class: "run" }, h("code", {}, l.command)));
        if (l.text) this.log.append(h("li", {}, h("pre", {}, l.text)));
        this.next.disabled = !l.waiting;
        if (l.waiting) this.next.focus();
        if (l.error || l.done) this.said.textContent = l.error ?? `${name}: everything held.`;
        this.log.lastElementChild?.scrollIntoView({ block: "nearest" });
      });
    } catch (e) {
      this.said.textContent = (e as Error).message;
    }
    this.next.disabled = this.stop.disabled = true;
    setOf("");
    this.moved();
  }
}
