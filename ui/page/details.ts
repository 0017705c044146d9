// What is known of one node.

import { post } from "./api";
import { command, h, plural } from "./dom";
import { signs, words, wrongWith, type Finding, type Model, type Status, type Survey } from "./model";

/** Shows a node: facts, peers that are not in sync, and on demand what the doctor finds. */
export function details(model: Model, name: string, survey: Survey | null, examined: (s: Survey) => void): HTMLElement {
  const n = model.nodes.get(name), health = model.health(name);
  const panel = h("section", { class: "details", "aria-label": "Node " + name },
    h("h2", {}, name),
    h("p", { class: "badge " + health }, `${signs[health]} ${words[health]}`));
  if (!n) {
    panel.append(h("p", {}, model.silent.get(name) || "It is not in the network any more."));
    return panel;
  }
  const applied = n.lastApply ? new Date(n.lastApply).toLocaleTimeString() : "not known";
  panel.append(facts([["subnets", n.subnets.join(" ")], ["underlay", n.underlay.join(" ")], ["backend", n.backend], ["MTU", String(n.mtu)],
    ["agent", `${n.agent} ${n.version ?? ""}`], ["changes", n.changes < 0 ? "not known" : String(n.changes)], ["errors", n.errors < 0 ? "not known" : String(n.errors)],
    ["drops", drops(model, n)], ["last change", applied], ["fast path", n.fastPath ?? ""], ["policies", n.policies ? n.policies.error ?? (n.policies.enforced ? "enforced" : "enforced by " + (n.policies.engines ?? []).join(", ")) : ""]]));
  const out = (n.peers ?? []).filter((p) => wrongWith(p));
  panel.append(h("p", {}, `${plural((n.peers ?? []).length - out.length, "peer")} in sync`));
  if (out.length) panel.append(h("ul", { class: "broken-peers" }, ...out.map((p) => h("li", {}, `${p.node}: ${wrongWith(p)}`))));
  panel.append(doctor(model, name, survey, examined));
  return panel;
}

function drops(model: Model, n: Status): string {
  const devices = Object.entries(n.drops ?? {}).filter(([, packets]) => packets > 0).map(([dev, packets]) => `${dev} ${packets}`);
  return devices.length ? `${devices.join(", ")}; ${model.dropped(n.node)} since this page was opened` : "";
}

function facts(rows: [string, string][]): HTMLElement {
  return h("dl", {}, ...rows.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function doctor(model: Model, name: string, survey: Survey | null, examined: (s: Survey) => void): HTMLElement {
  const panel = h("div", { class: "doctor", "aria-live": "polite" });
  const all = [...(survey?.lost ?? []), ...(survey?.nodes.find((d) => d.node === name)?.findings ?? [])];
  if (survey) {
    const { sent, lost } = survey.probes;
    if (sent) panel.append(h("p", {}, lost ? `${lost} of ${sent} probes are lost` : `all ${sent} probes came back`));
    panel.append(...(all.length ? all.map(finding) : [h("p", {}, "The doctor finds nothing wrong.")]));
  }
  if (!model.view.can.live) return panel;
  for (const [text, probe] of [["Ask the doctor", false], ["Probe with packets", true]] as const) {
    if (probe && !model.view.can.probe) continue;
    const b = h("button", { type: "button" }, text);
    b.addEventListener("click", async () => {
      b.disabled = true;
      b.textContent = "Looking…";
      try {
        examined(await post<Survey>("doctor", { probe }));
      } catch (e) {
        b.disabled = false;
        b.textContent = text;
        panel.append(h("p", { class: "error" }, (e as Error).message));
      }
    });
    panel.append(b, " ");
  }
  return panel;
}

/** Shows a finding: where, what, why, and the command that mends it. */
export function finding(f: Finding): HTMLElement {
  return h("article", { class: "found", "data-finding": f.id },
    h("h3", {}, f.title),
    facts([["where", f.place ?? ""], ["what", f.object], ["expected", f.expected], ["actual", f.actual]]),
    h("p", {}, f.why),
    f.command ? command(f.command) : null,
    f.fix && f.fix !== f.command ? h("p", { class: "fix" }, f.fix) : null);
}
