// The page of "twillctl ui": the frame with its views, and what they share.

import { get, saved, takeToken, updates } from "./api";
import { Cells } from "./cells";
import { details } from "./details";
import { h } from "./dom";
import { Lessons } from "./lessons";
import { draw, few } from "./map";
import { matrix } from "./matrix";
import { Model, type Survey, type View } from "./model";
import { Packet, panel } from "./packet";
import { share } from "./share";
import { Time } from "./time";

type ViewName = "map" | "matrix" | "time" | "classroom";

class Page {
  private view: ViewName = "map";
  private node = "";
  private survey: Survey | null;
  private following = new AbortController();
  private waiting = false;
  private readonly health = h("p", { id: "health", role: "status" });
  private readonly search = h("input", { id: "search", type: "search", placeholder: "node, subnet or pod", "aria-label": "Search" });
  private readonly nav = h("nav", { "aria-label": "Views" });
  private readonly stage = h("div", { class: "stage" });
  private readonly aside = h("div", { class: "aside" });
  private readonly main = h("main", { id: "main", tabindex: -1 }, this.stage, this.aside);
  private readonly packet: Packet;
  private readonly cells: Cells;
  private readonly time: Time;
  private readonly lessons: Lessons;

  constructor(private model: Model, private file: ReturnType<typeof saved>) {
    this.survey = file?.survey ?? null;
    this.packet = new Packet(model, () => this.refresh());
    this.packet.walk = file?.walk ?? null;
    this.packet.trace = file?.trace ?? null;
    this.packet.step = this.packet.lost() ? this.packet.steps().length - 1 : 0;
    this.cells = new Cells(model, (name) => this.choose(name));
    this.time = new Time(model, file?.history ?? null);
    this.lessons = new Lessons(model, () => this.follow());
    this.frame();
    model.follow(() => this.refresh());
    this.search.addEventListener("input", () => this.refresh());
    addEventListener("resize", () => this.refresh());
    addEventListener("hashchange", () => this.fromAddress());
    document.addEventListener("keydown", (e) => this.key(e));
    this.fromAddress();
    if (file) model.take(file.update);
    else this.follow();
  }

  private frame() {
    const { can, kind, name } = this.model.view;
    const views: [ViewName, string, boolean][] = [["map", "Map", true], ["matrix", "Matrix", true], ["time", "Time", can.history], ["classroom", "Classroom", can.faults]];
    this.nav.append(...views.filter(([, , there]) => there).map(([view, text]) => h("a", { href: "#" + view, "data-view": view }, text)));
    const legend = h("p", { class: "legend" }, ...(["ok ✓ in sync", "repaired ↻ just repaired", "drift ≠ out of sync", "finding ! finding", "unreachable ✕ unreachable"].map((t) => {
      const [health, ...text] = t.split(" ");
      return h("span", { class: "badge " + health }, text.join(" "));
    })));
    const when = this.file ? `, ${new Date(this.file.at).toLocaleString()}` : "";
    document.getElementById("app")!.append(
      h("a", { class: "skip", href: "#main", onclick: (e) => { e.preventDefault(); this.main.focus(); } }, "Skip to the network"),
      h("header", {}, h("h1", {}, "Twill ", h("small", {}, `${kind} ${name}${when}`)), this.health, this.search, this.nav),
      this.main, h("footer", {}, legend));
  }

  /** Follows the updates, from the start. */
  private follow() {
    this.following.abort();
    this.following = new AbortController();
    this.model.version = 0;
    void updates((u) => this.model.take(u), (yes) => this.model.connect(yes), this.following.signal);
  }

  private fromAddress() {
    const asked = location.hash.slice(1) as ViewName;
    this.view = [...this.nav.querySelectorAll("a")].some((a) => a.dataset.view === asked) ? asked : "map";
    this.refresh();
  }

  private choose(name: string) {
    this.node = this.node === name ? "" : name;
    this.refresh();
  }

  private key(e: KeyboardEvent) {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test((e.target as Element).tagName);
    if (e.key === "/" && !typing) {
      e.preventDefault();
      this.search.focus();
    }
    if (typing || !this.packet.way() || this.view !== "map") return;
    if (e.key === "ArrowRight") this.packet.go(1);
    if (e.key === "ArrowLeft") this.packet.go(-1);
  }

  /** Draws again with the next frame, however often it is asked for. */
  private refresh() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  private draw() {
    if (!this.model.version) return;
    const names = this.model.names();
    this.say();
    for (const a of this.nav.querySelectorAll("a")) a.toggleAttribute("aria-current", a.dataset.view === this.view);
    this.main.dataset.view = this.view;
    if (this.view !== "time") this.time.hide();
    keepFocus(this.main, () => this.fill(names));
    document.body.dataset.ready = "true";
  }

  /** Says in the header how the network is; what is wrong leads to its node. */
  private say() {
    const away = !this.file && !this.model.connected, wrong = this.model.wrong();
    const starts = this.lessons.running && (this.model.error || !this.model.names().length);
    const text = away ? "not connected: is twillctl ui still running?" : starts ? "the lesson’s lab starts…" : this.model.sentence();
    const about = this.lessons.running ? ` (the lesson ${this.lessons.running})` : "";
    this.health.className = starts ? "" : away || this.model.error || wrong.length ? "bad" : "good";
    if (this.health.textContent === text + about) return;
    this.health.replaceChildren(wrong.length && !away && !starts && !about ? h("button", { type: "button", class: "plain", onclick: () => this.reveal(wrong[0]!) }, text) : text + about);
  }

  /** Shows a node on the map, with what is known of it. */
  private reveal(name: string) {
    this.node = name;
    location.hash = "map";
    this.refresh();
  }

  private fill(names: string[]) {
    switch (this.view) {
      case "matrix": return this.show(matrix(this.model, names, (n) => this.reveal(n)));
      case "time": this.time.show(); return this.show(this.time.element);
      case "classroom": void this.lessons.show(); return this.show(this.lessons.element);
    }
    const ends = [this.nodeOf(this.packet.from || this.packet.walk?.from), this.nodeOf(this.packet.to || this.packet.walk?.to)].filter(Boolean);
    const cards = names.length <= few ? names : names.filter((n) => ends.includes(n) || n === this.node);
    const parts: Node[] = [];
    if (cards.length) parts.push(h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Map" }, draw(this.model, cards, this.stage.clientWidth || innerWidth - 20, { node: (n) => this.choose(n), pod: (id) => this.packet.point(id) },
      { node: this.node, from: this.packet.from || this.packet.walk?.from || "", to: this.packet.to || this.packet.walk?.to || "" }, this.packet.way())));
    if (names.length > few) {
      this.cells.update(names, (n) => this.matches(n), this.node);
      parts.push(this.cells.element);
    } else for (const n of names) (parts[0] as Element).querySelector(`[data-node="${CSS.escape(n)}"]`)?.classList.toggle("faint", !this.matches(n));
    if (this.model.wrong().length) parts.push(this.troubles());
    const right = [panel(this.model, this.packet, share(this.packet, this.model.view.can.live))];
    if (this.node) right.unshift(details(this.model, this.node, this.survey, (s) => { this.survey = s; this.refresh(); }));
    this.show(...parts);
    this.aside.replaceChildren(...right);
  }

  /** Lists what is wrong, by node, below the map. */
  private troubles(): HTMLElement {
    const wrong = this.model.wrong(), most = 12;
    return h("section", { class: "troubles", "aria-label": "What is wrong" }, h("h2", {}, "What is wrong"),
      h("ul", { class: "broken-peers" }, ...wrong.slice(0, most).map((n) => h("li", {}, h("button", { type: "button", class: "plain", onclick: () => this.reveal(n) }, n), " " + this.model.trouble(n)))),
      wrong.length > most ? h("p", {}, `and ${wrong.length - most} more nodes`) : null);
  }

  private show(...parts: Node[]) {
    if (this.view !== "map") this.aside.replaceChildren();
    if (parts.length !== this.stage.childNodes.length || parts.some((p, i) => p !== this.stage.childNodes[i])) this.stage.replaceChildren(...parts);
  }

  private nodeOf(id = ""): string { return this.model.places.pods.find((p) => p.id === id)?.node ?? ""; }

  private matches(name: string): boolean {
    const text = this.search.value.trim().toLowerCase();
    if (!text) return true;
    const n = this.model.nodes.get(name);
    return [name, ...(n?.subnets ?? []), ...(n?.underlay ?? []), ...this.model.pods(name).flatMap((p) => [p.id, ...p.addrs])].some((t) => t.toLowerCase().includes(text));
  }
}

/** Draws anew, and gives the focus back to what stands where it was. */
function keepFocus(within: HTMLElement, change: () => void) {
  const old = document.activeElement;
  const key = old && within.contains(old) ? selector(old) : "";
  const caret = old instanceof HTMLInputElement ? old.selectionStart : null;
  change();
  if (!key || (old && document.contains(old))) return;
  const now = within.querySelector<HTMLElement>(key);
  now?.focus({ preventScroll: true });
  if (now instanceof HTMLInputElement && caret !== null) now.setSelectionRange(caret, caret);
}

function selector(e: Element): string {
  if (e.id) return "#" + CSS.escape(e.id);
  for (const name of ["data-pod", "data-previous", "data-next"]) if (e.hasAttribute(name)) return `[${name}="${CSS.escape(e.getAttribute(name)!)}"]`;
  const holder = e.closest("[data-node], [data-step]");
  if (holder?.hasAttribute("data-node")) return `[data-node="${CSS.escape(holder.getAttribute("data-node")!)}"] .head`;
  if (holder) return `[data-step="${holder.getAttribute("data-step")}"] button`;
  const label = e.getAttribute("aria-label");
  return label ? `[aria-label="${CSS.escape(label)}"]` : "";
}

async function begin() {
  takeToken();
  const file = saved();
  try {
    const model = new Model(file?.view ?? await get<View>("view"));
    new Page(model, file);
  } catch (e) {
    document.getElementById("app")!.append(h("main", {}, h("h1", {}, "Twill"), h("p", { class: "error", role: "alert" }, (e as Error).message)));
  }
}

void begin();
