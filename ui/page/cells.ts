// The map of many nodes: a cell for each, in groups.

import { h } from "./dom";
import { segments } from "./layout";
import { signs, words, type Model } from "./model";

/** Cells keeps the cells of nodes, and changes only those whose health changed. */
export class Cells {
  readonly element = h("div", { class: "groups" });
  private cells = new Map<string, HTMLButtonElement>();
  private groups = "";

  constructor(private model: Model, private choose: (name: string) => void) {}

  update(names: string[], matches: (name: string) => boolean, chosen: string) {
    const groups = segments(this.model, names);
    const key = JSON.stringify(groups);
    if (key !== this.groups) {
      this.groups = key;
      this.build(groups);
    }
    for (const [name, cell] of this.cells) {
      const health = this.model.health(name);
      if (cell.dataset.health !== health) {
        cell.dataset.health = health;
        cell.textContent = health === "ok" ? "" : signs[health];
        cell.setAttribute("aria-label", `node ${name}: ${words[health]}`);
        cell.title = `${name}: ${words[health]} ${this.model.trouble(name)}`;
      }
      cell.classList.toggle("faint", !matches(name));
      cell.classList.toggle("chosen", name === chosen);
    }
  }

  private build(groups: { name: string; nodes: string[] }[]) {
    this.cells.clear();
    this.element.replaceChildren(...groups.map((g) => h("section", { class: "group" },
      h("h2", {}, g.name, " ", h("small", {}, `${g.nodes.length} nodes`)),
      h("div", { class: "cells" }, ...g.nodes.map((name) => {
        const cell = h("button", { type: "button", class: "cell", "data-node": name, onclick: () => this.choose(name) });
        this.cells.set(name, cell);
        return cell;
      })))));
  }
}
