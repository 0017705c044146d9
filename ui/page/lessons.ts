// The lab as a classroom: scripts as lessons, with the map of their lab above them, and faults to inject.

import { get, post, setOf, stream } from "./api";
import { h } from "./dom";
import { draw, few } from "./map";
import type { Model } from "./model";

interface Fault { name: string; description: string; heals: boolean; lossless: boolean }
interface Script { name: string; title: string; group: string; sections: string[] }
interface Line {
  line?: number; section?: string; command?: string; check?: boolean; text?: string; picture?: string; lab?: string; waiting?: boolean; done?: boolean;
  error?: string; healed?: boolean; ms?: number;
}

/** Lessons are the faults and scripts of a lab. */
export class Lessons {
  readonly element = h("section", { class: "lessons", "aria-label": "Classroom" });
  /** The lesson whose lab is shown; empty: none. */
  running = "";
  private faults: Fault[] = [];
  private scripts: Script[] = [];
  private touched = new Set<string>(); // words of the last command, nodes' names among them
  private readonly map = h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Map of the lesson’s lab" });
  private readonly title = h("h2", {}, "Choose a lesson");
  private readonly log = h("div", { class: "log", tabindex: 0, role: "log", "aria-label": "What the lesson does" },
    h("p", { class: "hint" }, "A lesson builds a network of its own on this machine, and shows what its commands do to it. “Step by step” waits before each command."));
  private readonly said = h("p", { role: "status" });
  private readonly next = h("button", { type: "button", id: "next", disabled: true, onclick: () => void post("next", {}) }, "Next step");
  private readonly jump = h("select", { id: "jump", "aria-label": "Go on to", disabled: true });
  private readonly stop = h("button", { type: "button", disabled: true, onclick: () => void post("stop", {}) }, "Stop");
  private readonly injury = h("output", { id: "injury" });

  constructor(private model: Model, private moved: () => void) {
    this.jump.addEventListener("change", () => {
      if (this.jump.value) void post("next", { section: this.jump.value });
      this.jump.value = "";
    });
  }

  /** Shows the lessons, and what their lab is like now. */
  async show() {
    if (this.faults.length) return this.drawMap();
    try {
      [this.faults, this.scripts] = await Promise.all([get<Fault[]>("faults"), get<Script[]>("scripts")]);
      this.draw();
    } catch (e) {
      this.element.replaceChildren(h("p", { class: "error" }, (e as Error).message));
    }
  }

  private drawMap() {
    const names = this.running ? this.model.names().slice(0, few) : [];
    if (!names.length) return this.map.replaceChildren();
    this.map.replaceChildren(draw(this.model, names, this.map.clientWidth || innerWidth / 2, { node: () => {}, pod: () => {} },
      { node: "", from: "", to: "", touched: this.touched }, null));
  }

  private draw() {
    const search = h("input", { type: "search", id: "lesson-search", "aria-label": "Search lessons", placeholder: "search" });
    const list = h("div", {});
    const fill = () => list.replaceChildren(...this.groups(search.value.trim().toLowerCase()));
    search.addEventListener("input", fill);
    fill();
    this.element.replaceChildren(
      h("div", { class: "column" }, h("h2", {}, "Lessons"), search, list, this.breakage()),
      h("div", { class: "column lesson" }, this.title, h("div", { class: "bar" }, this.next, this.jump, this.stop, this.said), this.map, this.log));
  }

  private groups(text: string): HTMLElement[] {
    const fit = this.scripts.filter((s) => (s.name + " " + s.title + " " + s.sections.join(" ")).toLowerCase().includes(text));
    const names = [...new Set(fit.map((s) => s.group))];
    if (!names.length) return [h("p", {}, "No lesson has these words.")];
    return names.map((name, i) => h("details", { class: "lesson-group", open: i === 0 || text !== "" }, h("summary", {}, name),
      h("ul", { class: "scripts" }, ...fit.filter((s) => s.group === name).map((s) => h("li", {}, h("b", {}, s.title), " ",
        h("button", { type: "button", "data-script": s.name, onclick: () => void this.run(s, true) }, "Step by step"), " ",
        h("button", { type: "button", onclick: () => void this.run(s, false), "aria-label": "Run " + s.name }, "Run"), " ", h("code", {}, s.name))))));
  }

  /** Is what can be broken in the lab that the page is of. */
  private breakage(): HTMLElement {
    const nodes = h("select", { id: "victim" }, ...this.model.names().map((n) => h("option", {}, n)));
    const list = h("ul", { class: "faults" });
    const search = h("input", { type: "search", id: "fault-search", "aria-label": "Search faults", placeholder: "search" });
    const fill = () => list.replaceChildren(...this.faults.filter((f) => (f.name + f.description).includes(search.value)).map((f) => h("li", {},
      h("button", { type: "button", "data-fault": f.name, onclick: () => void this.inject(f.name, nodes.value) }, f.name), ` ${f.description}${f.heals ? "" : " (no agent heals it)"}`)));
    search.addEventListener("input", fill);
    fill();
    return h("details", { open: true }, h("summary", {}, h("h2", {}, "Break something")), this.injury,
      h("div", { class: "bar" }, h("label", { for: "victim" }, "on ", nodes), search), list);
  }

  private async inject(name: string, node: string) {
    this.injury.textContent = "…";
    const took = (l: Line) => {
      if (l.error) this.injury.textContent = l.error;
      else if (l.done) this.injury.textContent = l.healed ? `healed in ${l.ms!.toFixed(1)} ms` : l.text ?? "";
      else this.injury.textContent = l.text ?? "";
    };
    this.stop.disabled = false;
    try { await stream<Line>("fault", { name, node }, took); } catch (e) { this.injury.textContent = (e as Error).message; }
    this.stop.disabled = true;
  }

  private async run(s: Script, step: boolean) {
    this.log.replaceChildren();
    this.title.textContent = s.title;
    this.said.textContent = `${s.name} is running.`;
    this.jump.replaceChildren(h("option", { value: "" }, "Go on to…"), ...s.sections.map((text) => h("option", { value: text }, text)));
    this.stop.disabled = false;
    this.running = s.name;
    this.title.scrollIntoView({ block: "nearest" });
    const lesson = new Lesson(this.log);
    try {
      await stream<Line>("script", { name: s.name, step }, (l) => {
        if (l.lab) { setOf(l.lab); this.moved(); }
        lesson.take(l);
        if (l.section) this.pass(l.section);
        if (l.command && !l.check) this.touch(l.command);
        this.next.disabled = this.jump.disabled = !l.waiting;
        if (l.waiting) this.next.focus({ preventScroll: true });
        if (l.done) this.said.textContent = `${s.name}: everything held.`;
        if (l.error) this.said.textContent = /context canceled/.test(l.error) ? `stopped at step ${lesson.steps}` : l.error;
      });
    } catch (e) {
      this.said.textContent = (e as Error).message;
    }
    this.next.disabled = this.jump.disabled = this.stop.disabled = true;
    this.running = "";
    this.touched.clear();
    setOf("");
    this.moved();
    this.drawMap();
  }

  /** Offers only sections that are still to come. */
  private pass(section: string) {
    const options = [...this.jump.options];
    const at = options.findIndex((o) => o.value === section);
    for (const o of options.slice(1, at + 1)) o.remove();
  }

  /** Notes which nodes a command names. */
  private touch(command: string) {
    this.touched = new Set(command.split(/[\s/=,]+/)); // the nodes may not be known yet
    this.drawMap();
  }
}

/** Lesson is the text of a lesson that runs: what is said, what is done, what came of it, and a tick for each thing that held. */
class Lesson {
  steps = 0; // that were begun
  private section = "";
  private step: HTMLElement | null = null;
  private checks: HTMLElement | null = null;
  private check: HTMLElement | null = null; // not yet known

  constructor(private into: HTMLElement) {}

  take(l: Line) {
    if (l.command || l.done) this.held();
    if (l.section && l.section !== this.section) this.into.append(h("p", { class: "prose" }, this.section = l.section));
    if (l.command && l.check && this.step) this.checks!.append(this.check = h("span", { class: "check", title: l.command }, "…"));
    else if (l.command) {
      this.steps++;
      this.checks = h("span", { class: "checks" });
      this.step = h("div", { class: "run" }, h("div", {}, h("code", {}, l.command), " ", this.checks));
      this.into.append(this.step);
    }
    if (l.text) this.step?.append(l.picture ? h("details", {}, h("summary", {}, "As text"), h("pre", {}, l.text)) : h("pre", {}, l.text));
    if (l.picture) this.show(l.picture);
    if (l.error && this.check) this.mark("✕", "broken");
    this.into.lastElementChild?.scrollIntoView({ block: "nearest" });
  }

  /** Shows a picture from its top. */
  private show(svg: string) {
    const step = this.step!, image = h("img", { class: "picture", alt: "The packet’s way, step by step", src: "data:image/svg+xml," + encodeURIComponent(svg) });
    image.addEventListener("load", () => { this.into.scrollTop = step.offsetTop - this.into.offsetTop; });
    step.append(image);
  }

  /** Ticks the last check: the lesson went on. */
  private held() { if (this.check) this.mark("✓", "held"); }

  private mark(sign: string, what: string) {
    this.check!.textContent = sign;
    this.check!.classList.add(what);
    this.check!.setAttribute("aria-label", `${what}: ${this.check!.title}`);
    this.check = null;
  }
}
