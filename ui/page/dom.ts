// Elements. All text goes through textContent: what comes from a cluster is never markup.

type Attributes = Record<string, string | number | boolean | EventListener | undefined>;
type Child = Node | string | false | null | undefined;

function fill(e: Element, attributes: Attributes, children: Child[]) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") e.addEventListener(name.slice(2), value);
    else if (value === true) e.setAttribute(name, "");
    else if (value !== false && value !== undefined) e.setAttribute(name, String(value));
  }
  for (const c of children) if (c !== false && c !== null && c !== undefined) e.append(c);
}

/** Makes an HTML element; attributes that begin with "on" are listeners. */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const e = document.createElement(tag);
  fill(e, attributes, children);
  return e;
}

/** Makes an SVG element. */
export function s<K extends keyof SVGElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): SVGElementTagNameMap[K] {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(e, attributes, children);
  return e;
}

/** Makes an SVG element a button for mouse, keyboard and screen reader. */
export function button<E extends SVGElement>(e: E, label: string, press: () => void): E {
  e.setAttribute("role", "button");
  e.setAttribute("tabindex", "0");
  e.setAttribute("aria-label", label);
  e.addEventListener("click", press);
  e.addEventListener("keydown", (event) => {
    const key = (event as KeyboardEvent).key;
    if (key !== "Enter" && key !== " ") return;
    event.preventDefault();
    press();
  });
  return e;
}

/** Shortens a text that has too many characters, without cutting one of them in two. */
export function short(text: string, most: number): string {
  const all = [...text];
  return all.length <= most ? text : all.slice(0, most - 1).join("") + "…";
}

/** Returns a command with a button that copies it. */
export function command(text: string): HTMLElement {
  const copy = h("button", { type: "button", class: "copy", "aria-label": "Copy the command" }, "Copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(text);
    copy.textContent = "Copied";
  });
  return h("div", { class: "command" }, h("code", { "data-fix": true }, text), copy);
}

export function plural(n: number, word: string, words = word + "s"): string {
  return n + " " + (n === 1 ? word : words);
}
