// Files to share: the drawing as SVG, and the page as HTML.

import { postText } from "./api";
import { h } from "./dom";
import type { Packet } from "./packet";

/** What a drawing looks like elsewhere: everything that the style sheet decides here. */
const kept = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "font-family", "font-size", "font-weight", "text-anchor"];

function save(name: string, type: string, content: string) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Returns a drawing that needs no style sheet. */
export function selfContained(svg: SVGSVGElement): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const from = [svg, ...svg.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  for (const [i, e] of from.entries()) {
    const style = getComputedStyle(e);
    for (const name of kept) to[i]!.setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "tabindex", "role"]) to[i]!.removeAttribute(name);
  }
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("style", "background:" + getComputedStyle(document.body).backgroundColor);
  return new XMLSerializer().serializeToString(copy);
}

/** Returns the buttons that save what is shown. */
export function share(p: Packet, live: boolean): HTMLElement {
  const box = h("span", { class: "share" }, h("button", { type: "button", onclick: () => {
    const svg = document.querySelector<SVGSVGElement>("svg.map");
    if (svg) save("twill-packet.svg", "image/svg+xml", selfContained(svg));
  } }, "Save as SVG"));
  if (!live) return box;
  const html = h("button", { type: "button" }, "Save as HTML");
  html.addEventListener("click", async () => {
    html.disabled = true;
    try {
      save("twill.html", "text/html", await postText("save", { walk: p.walk ?? undefined, trace: p.trace ?? undefined }));
    } catch (e) {
      html.after(h("span", { class: "error" }, (e as Error).message));
    }
    html.disabled = false;
  });
  box.append(" ", html);
  return box;
}
