// Where things are on the map: cards of nodes in a row for each segment, with the segment's line below them.

import type { Model, Pod } from "./model";

export interface Point { x: number; y: number }
export interface Card {
  name: string; x: number; y: number; width: number; height: number; pods: { pod: Pod; x: number; y: number; width: number }[];
  more: number; bridge: number; tunnel: number; nic: number; bus: number; segment: number;
}
export interface Layout { width: number; height: number; cards: Map<string, Card>; buses: { name: string; x: number; y: number; width: number }[] }

export const card = { least: 236, most: 330, gap: 36, pod: 30, chips: 2, pods: 6, row: 30 };
const top = 70; // room for the tunnels above the cards
const margin = 14;

/** Places the nodes in as many columns as fit. */
export function layout(model: Model, names: string[], available: number): Layout {
  const columns = Math.max(1, Math.min(names.length, Math.floor((available - 2 * margin + card.gap) / (card.least + card.gap))));
  const width = Math.max(card.least, Math.min(card.most, (available - 2 * margin + card.gap) / columns - card.gap));
  const result: Layout = { width: 0, height: margin, cards: new Map(), buses: [] };
  for (const [index, segment] of segments(model, names).entries()) {
    for (let begin = 0; begin < segment.nodes.length; begin += columns) {
      const row = segment.nodes.slice(begin, begin + columns);
      placeRow(model, result, row, segment.name, index, width);
    }
  }
  result.width = Math.max(result.width, margin * 2 + width);
  return result;
}

/** Groups nodes by segment; those of no known one come last. */
export function segments(model: Model, names: string[]): { name: string; nodes: string[] }[] {
  const groups = model.places.segments.map((s) => ({ name: [s.name, ...s.subnets].join(" "), nodes: names.filter((n) => s.nodes.includes(n)) }));
  const known = new Set(groups.flatMap((g) => g.nodes));
  const rest = new Map<string, string[]>();
  for (const n of names.filter((n) => !known.has(n))) {
    const at = network(model.nodes.get(n)?.underlay[0]);
    rest.set(at, [...(rest.get(at) ?? []), n]);
  }
  return [...groups, ...[...rest].map(([name, nodes]) => ({ name, nodes }))].filter((g) => g.nodes.length > 0);
}

/** Is a name for the neighbourhood of an address. */
function network(address = ""): string {
  const parts = address.split(".");
  if (parts.length === 4) return "underlay " + parts.slice(0, 2).join(".") + ".0.0/16";
  return address ? "underlay " + address.split(":").slice(0, 3).join(":") + "::/48" : "underlay";
}

function placeRow(model: Model, to: Layout, row: string[], name: string, segment: number, wide: number) {
  const lines = Math.max(1, ...row.map((n) => Math.ceil(Math.min(model.pods(n).length, card.pods) / card.chips)));
  const y = to.height + top;
  const height = 58 + lines * card.pod + 3 * (card.row + 4) + 8;
  for (const [i, node] of row.entries()) {
    const x = margin + i * (wide + card.gap);
    const pods = model.pods(node);
    const width = (wide - 24 - 6) / card.chips;
    const under = y + 58 + lines * card.pod;
    to.cards.set(node, {
      name: node, x, y, width: wide, height, segment,
      pods: pods.slice(0, card.pods).map((pod, k) => ({ pod, x: x + 12 + (k % card.chips) * (width + 6), y: y + 56 + Math.floor(k / card.chips) * card.pod, width })),
      more: Math.max(0, pods.length - card.pods),
      bridge: under, tunnel: under + card.row + 4, nic: under + 2 * (card.row + 4), bus: y + height + 22,
    });
  }
  const width = row.length * (wide + card.gap) - card.gap;
  to.buses.push({ name, x: margin, y: y + height + 22, width });
  to.width = Math.max(to.width, width + 2 * margin);
  to.height = y + height + 52;
}

/** Returns where on the map a device of a host is. */
export function anchor(l: Layout, host: string, dev: string, before: Point | null): Point | null {
  if (host === "underlay") {
    const c = l.cards.get(dev) ?? [...l.cards.values()].find((c) => before && before.x >= c.x && before.x <= c.x + c.width);
    return c ? { x: c.x + c.width / 2, y: c.bus } : before;
  }
  const node = host.replace(/'s router$/, "");
  for (const c of l.cards.values()) {
    const pod = c.pods.find((p) => p.pod.id === host);
    if (pod) return { x: pod.x + 20, y: pod.y + 24 };
    if (c.name !== node && !host.startsWith(c.name + "/")) continue;
    if (c.name !== node) return { x: c.x + 30, y: c.bridge };
    return { x: c.x + c.width / 2, y: level(c, dev) };
  }
  return before;
}

/** Returns the height of a device, or of a place that a trace names, on its node's card. */
function level(c: Card, dev: string): number {
  if (/pod/.test(dev)) return c.bridge - 6;
  if (/^(eth|ens|enp|bond|wl)|underlay|wrapped|arriv|^(in|out)put rules|^way to/.test(dev)) return c.nic + card.row / 2;
  if (/^(veth|cni|docker)|bridge|rule|policy|^forwarding$/.test(dev)) return c.bridge + card.row / 2;
  return c.tunnel + card.row / 2;
}

/** Returns the points of a line that leads from one point to another, without the first: between cards along the underlay, and between rows through the gap beside a card. */
export function lead(l: Layout, a: Point, b: Point): Point[] {
  const from = cardAt(l, a), to = cardAt(l, b);
  if (!from || !to || from === to) return [b];
  const down = { x: from.x + from.width / 2, y: from.bus }, up = { x: to.x + to.width / 2, y: to.bus };
  const gap = Math.max(5, to.x - card.gap / 2);
  return [down, ...(from.bus === to.bus ? [] : [{ x: gap, y: from.bus }, { x: gap, y: to.bus }]), up, b];
}

function cardAt(l: Layout, p: Point): Card | undefined {
  return [...l.cards.values()].find((c) => p.x >= c.x && p.x <= c.x + c.width && p.y >= c.y && p.y <= c.bus);
}
