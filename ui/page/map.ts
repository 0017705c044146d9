// The map of a few nodes: cards with pods, bridge, tunnel and network card; tunnels above them, the underlay below.

import { button, plural, s, short } from "./dom";
import { anchor, card, layout, lead, type Card, type Layout, type Point } from "./layout";
import { isBare, signs, type Model, words, wrongWith } from "./model";

export interface Choice { node: (name: string) => void; pod: (id: string) => void }
export interface Chosen { node: string; from: string; to: string; touched?: Set<string> }
export interface Way { points: { host: string; dev: string }[]; step: number; lost: boolean }

/** At most so many nodes are drawn as cards. */
export const few = 24;

/** Draws nodes, and a packet's way if there is one. */
export function draw(model: Model, names: string[], width: number, choose: Choice, chosen: Chosen, way: Way | null): SVGSVGElement {
  const l = layout(model, names, width);
  const svg = s("svg", { class: "map", viewBox: `0 0 ${l.width} ${l.height}`, width: l.width, height: l.height, role: "group", "aria-label": "Map of the network" });
  const links = s("g", { class: "links", "aria-hidden": "true" });
  for (const bus of l.buses) {
    svg.append(s("line", { class: "bus", x1: bus.x, x2: bus.x + bus.width, y1: bus.y, y2: bus.y }),
      s("text", { class: "note", x: bus.x, y: bus.y + 18 }, bus.name));
  }
  svg.append(links);
  drawLinks(model, l, links, names.length <= 8 ? "" : chosen.node);
  for (const c of l.cards.values()) svg.append(drawCard(model, c, choose, chosen));
  if (way) svg.append(drawWay(l, way));
  return svg;
}

/** Draws a line for each pair of peers: all, or only those of one node where there are many. */
function drawLinks(model: Model, l: Layout, into: SVGElement, only: string) {
  const names = [...l.cards.keys()];
  const many = names.length > 8;
  for (const [i, a] of names.entries()) {
    for (const b of names.slice(i + 1)) {
      const there = model.nodes.get(a)?.peers?.find((p) => p.node === b);
      const back = model.nodes.get(b)?.peers?.find((p) => p.node === a);
      if (!there && !back) continue;
      const wrong = (there && wrongWith(there)) || (back && wrongWith(back)) || (!!there === !!back ? "" : "one side lacks the other");
      const sync = !wrong;
      if (many && sync && a !== only && b !== only) continue;
      const direct = there?.direct || back?.direct || model.nodes.get(a)?.backend === "host-gw";
      into.append(s("path", { class: `link${direct ? " direct" : ""}${sync ? "" : " broken"}`, d: curve(l.cards.get(a)!, l.cards.get(b)!), "data-link": `${a} ${b}`, "data-sync": String(sync) },
        s("title", {}, `${a} – ${b}: ${direct ? "direct route" : "tunnel"}, ${wrong || "in sync"}`)));
    }
  }
}

function curve(a: Card, b: Card): string {
  const x1 = a.x + a.width / 2, x2 = b.x + b.width / 2;
  if (a.y !== b.y) return `M${x1},${a.y + a.height / 2} C${x1},${(a.y + b.y + a.height) / 2} ${x2},${(a.y + b.y + a.height) / 2} ${x2},${b.y + b.height / 2}`;
  const rise = Math.min(62, 22 + Math.abs(x2 - x1) * 0.055);
  return `M${x1 + 14},${a.y} C${x1 + 14},${a.y - rise} ${x2 - 14},${b.y - rise} ${x2 - 14},${b.y}`;
}

function drawCard(model: Model, c: Card, choose: Choice, chosen: Chosen): SVGElement {
  const n = model.nodes.get(c.name), health = model.health(c.name);
  const g = s("g", { class: `node ${health}${chosen.node === c.name ? " chosen" : ""}${chosen.touched?.has(c.name) ? " touched" : ""}`, "data-node": c.name, "data-health": health });
  g.append(s("line", { class: "cable", x1: c.x + c.width / 2, x2: c.x + c.width / 2, y1: c.y + c.height, y2: c.bus }),
    s("rect", { class: "card", x: c.x, y: c.y, width: c.width, height: c.height, rx: 8 }));
  const trouble = model.trouble(c.name);
  const bare = n && isBare(n);
  const visible = [short(c.name, 20), short(n?.subnets.join(" ") ?? "", 32), bare ? "" : `${signs[health]} ${words[health]}`] as const;
  const label = `${visible.join(" ")}: node ${c.name}${trouble ? ", " + trouble : ""}; ${c.pods.length + c.more} pods`;
  g.append(button(s("g", { class: "head" },
    s("rect", { class: "grip", x: c.x, y: c.y, width: c.width, height: 48, rx: 8 }),
    s("text", { class: "name", x: c.x + 12, y: c.y + 20 }, visible[0]), " ",
    s("text", { class: "mono note", x: c.x + 12, y: c.y + 38 }, visible[1]), " ",
    s("text", { class: "health", x: c.x + c.width - 12, y: c.y + 20, "text-anchor": "end" }, visible[2])), label, () => choose.node(c.name)));
  for (const p of c.pods) g.append(drawPod(p, choose, chosen));
  if (c.more) g.append(s("text", { class: "note", x: c.x + c.width - 12, y: c.bridge - 3, "text-anchor": "end" }, `and ${c.more} more pods`));
  const nic: [number, string, string] = [c.nic, "nic", short(n?.underlay.join(" ") ?? "", 30)];
  const devices: typeof nic[] = bare ? [nic] : [[c.bridge, "bridge", "cni0"], [c.tunnel, "tunnel", tunnelOf(n?.backend)], nic];
  for (const [y, kind, text] of devices) {
    g.append(s("rect", { class: "device " + kind, x: c.x + 12, y, width: c.width - 24, height: card.row - 4, rx: 4 }),
      s("text", { class: "mono", x: c.x + 20, y: y + 17 }, text));
  }
  if (n && !bare) g.append(s("text", { class: "note", x: c.x + c.width - 20, y: c.tunnel + 17, "text-anchor": "end" }, peersOf(n.peers ?? []) + dropsOf(model.dropped(c.name))),
    s("text", { class: "note", x: c.x + c.width - 20, y: c.bridge + 17, "text-anchor": "end" }, extras(n)),
    s("text", { class: "note", x: c.x + c.width - 20, y: c.nic + 17, "text-anchor": "end" }, n.changes < 0 ? "" : plural(n.changes, "change")));
  return g;
}

function tunnelOf(backend = ""): string {
  const names: Record<string, string> = { vxlan: "flannel.1", "host-gw": "direct routes", udp: "flannel0", ipip: "flannel.ipip", wireguard: "flannel-wg", ipsec: "xfrm" };
  return names[backend] ?? backend;
}

function peersOf(peers: { inSync: boolean }[]): string {
  const good = peers.filter((p) => p.inSync).length;
  return good === peers.length ? `${good} peers` : `${good} of ${peers.length} peers`;
}

function dropsOf(packets: number): string { return packets ? ", " + plural(packets, "drop") : ""; }

function extras(n: { fastPath?: string; policies?: unknown; mtu: number }): string {
  return [n.fastPath && "fast path " + n.fastPath, n.policies && "policies", "MTU " + n.mtu].filter(Boolean).join(", ");
}

function drawPod(p: Card["pods"][number], choose: Choice, chosen: { from: string; to: string }): SVGElement {
  const end = p.pod.id === chosen.from ? "from" : p.pod.id === chosen.to ? "to" : "";
  const name = p.pod.id.slice(p.pod.id.indexOf("/") + 1); // the whole of it, with node or namespace, does not fit
  const visible = short((end ? end + ": " : "") + name, Math.floor((p.width - 20) / 6.8));
  const label = `${visible}, pod ${p.pod.id}, ${p.pod.addrs.join(" ")}`;
  return button(s("g", { class: "pod " + end, "data-pod": p.pod.id },
    s("rect", { x: p.x, y: p.y, width: p.width, height: 25, rx: 12.5 }),
    s("text", { x: p.x + 12, y: p.y + 17 }, visible)), label, () => choose.pod(p.pod.id));
}

function drawWay(l: Layout, way: Way): SVGElement {
  const g = s("g", { class: "way" + (way.lost ? " lost" : ""), "aria-hidden": "true" });
  const points: Point[] = [];
  let last: Point | null = null;
  for (const at of way.points) {
    last = anchor(l, at.host, at.dev, last);
    if (last) points.push(last);
  }
  if (!points.length) return g;
  const text = (p: Point[]) => p.flatMap((q, i) => i ? lead(l, p[i - 1]!, q) : [q]).map((q) => `${q.x},${q.y}`).join(" ");
  const at = Math.min(way.step, points.length - 1);
  g.append(s("polyline", { class: "future", points: text(points) }), s("polyline", { class: "past", points: text(points.slice(0, at + 1)) }));
  for (const [i, p] of points.entries()) g.append(s("circle", { class: i <= at ? "past" : "future", cx: p.x, cy: p.y, r: 4 }));
  const p = points[at]!, end = way.lost && at === points.length - 1;
  g.append(s("circle", { class: "packet", cx: p.x, cy: p.y, r: 9 }));
  if (end) g.append(s("path", { class: "cross", d: `M${p.x - 5},${p.y - 5} l10,10 m0,-10 l-10,10` }));
  return g;
}
