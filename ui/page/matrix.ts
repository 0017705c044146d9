// Who reaches whom, as the nodes' own tables and their agents' requests say: a row's node to a column's.

import { h, plural } from "./dom";
import { type Model, type Peer, wrongWith } from "./model";

/** At most so many nodes are a table; more are a picture, and a list of what is wrong. */
const table = 40;

export function matrix(model: Model, names: string[], choose: (name: string) => void): HTMLElement {
  const peers = new Map(names.map((n) => [n, new Map((model.nodes.get(n)?.peers ?? []).map((p) => [p.node, p]))]));
  const wrong = names.flatMap((a) => names.filter((b) => a !== b && wrongWith(peers.get(a)?.get(b))).map((b) => ({ a, b, why: wrongWith(peers.get(a)?.get(b)) })));
  return h("section", { class: "matrix", "aria-label": "Who reaches whom" },
    h("h2", {}, "Who reaches whom"),
    h("p", {}, wrong.length ? `${plural(wrong.length, "pair")} of ${names.length * (names.length - 1)} not in sync, or without an answer` : `all ${names.length * (names.length - 1)} pairs in sync`),
    h("p", { class: "hint" }, "In sync: the sender’s tables are right. Whether packets pass, agents ask a few peers a minute; twillctl test asks all."),
    names.length <= table ? asTable(names, peers, choose) : asPicture(names, peers),
    wrong.length ? h("ul", { class: "broken-peers" }, ...wrong.slice(0, 200).map((w) => h("li", {},
      h("button", { type: "button", class: "plain", onclick: () => choose(w.a) }, `${w.a} → ${w.b}`), ` ${w.why}`))) : null,
    wrong.length > 200 ? h("p", {}, `and ${wrong.length - 200} more`) : null);
}

function asTable(names: string[], peers: Map<string, Map<string, Peer>>, choose: (name: string) => void): HTMLElement {
  return h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Table of all pairs" }, h("table", {},
    h("thead", {}, h("tr", {}, h("td", {}), ...names.map((n) => h("th", { scope: "col" }, h("span", {}, n))))),
    h("tbody", {}, ...names.map((a) => h("tr", {},
      h("th", { scope: "row" }, h("button", { type: "button", class: "plain", onclick: () => choose(a) }, a)),
      ...names.map((b) => {
        const p = peers.get(a)?.get(b);
        if (a === b) return h("td", { class: "self" }, "·");
        const wrong = wrongWith(p);
        return h("td", { class: wrong ? "broken" : "ok", title: `${a} → ${b}: ${wrong || "in sync"}` }, wrong ? "✕" : "✓");
      }))))));
}

function asPicture(names: string[], peers: Map<string, Map<string, Peer>>): HTMLElement {
  const size = Math.max(1, Math.floor(1000 / names.length));
  const canvas = h("canvas", { width: names.length * size, height: names.length * size, role: "img", "aria-label": "A point for each pair; what is not in sync is listed below" });
  const c = canvas.getContext("2d");
  if (!c) return canvas;
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string) => { c.fillStyle = style.getPropertyValue(name); };
  colour("--plot-ok");
  c.fillRect(0, 0, canvas.width, canvas.height);
  colour("--plot-broken");
  for (const [i, a] of names.entries()) {
    const row = peers.get(a);
    for (const [j, b] of names.entries()) if (i !== j && wrongWith(row?.get(b))) c.fillRect(j * size, i * size, size, size);
  }
  return canvas;
}
