// What the ending shows: an answer, what it gives up, a table of all algorithms, and code.

import { make } from "../dom.js";
import { say, write } from "./prose.js";
import { span } from "./svg.js";
import { second } from "./world.js";

const units = { s: 1, min: 60, h: 3600, d: 86400 };
const notes = { "anchored-window": " (INCR + EXPIRE)", "leaky-bucket": " (a queue)" };

// length returns a long time as text: 90 s as 1.5 min.
export function length(us) {
  if (us <= 0) return "none";
  const [name, size] = Object.entries(units).findLast(([, size]) => us >= size * second) ?? ["ms", 1e-3];
  return us < second ? span(us) : `${+(us / second / size).toFixed(1)} ${name}`;
}

const cell = (tag, text, attributes = {}) => Object.assign(make(tag, "", typeof text === "number" ? text.toLocaleString("en") : text), attributes);

const name = (v, advice) => v.title + (v.algorithm === "gcra" && advice.algorithm === "gcra" && advice.burst ? `, burst ${advice.burst.toLocaleString("en")}` : "") + (notes[v.algorithm] ?? "");

function row(v, advice) {
  const tr = make("tr", v.algorithm === advice.algorithm ? "best" : "");
  tr.append(cell("th", name(v, advice), { scope: "row" }));
  if (v.error) tr.append(cell("td", v.error, { colSpan: 6 }));
  else tr.append(cell("td", v.most), cell("td", v.worst, { className: v.breaks ? "over" : "" }), ...[v.admitted, v.refused, length(v.wait), v.bytes].map((x) => cell("td", x)));
  return tr;
}

// draw shows an Outcome in the section of the ending.
export function draw(root, trial, { verdicts, advice }) {
  const find = (selector) => root.querySelector(selector);
  write(find(".advice"), say`Take ${make("strong", "", advice.title + (advice.burst && advice.algorithm === "gcra" ? ` with a burst of ${advice.burst.toLocaleString("en")}` : ""))}. ${advice.why}`);
  find(".given").replaceChildren(...(advice.givenUp ?? []).map((text) => make("li", "", `Your answers conflict. ${text}`)));
  find(".customers").textContent = advice.customers;
  find("tbody").replaceChildren(...verdicts.map((v) => row(v, advice)));
  find(".most").textContent = `most seen in any ${trial.name}`;
  for (const code of ["go", "yaml", "test"]) find("." + code).textContent = advice[code];
}

// asText returns what the ending shows, without the code. The table has tabs between its columns.
export function asText(root, trial, { advice }, link) {
  const lines = (selector) => [...root.querySelectorAll(selector)].map((e) => e.textContent);
  const rows = [...root.querySelector("table").rows].map((tr) => [...tr.cells].map((e) => e.textContent).join("\t"));
  return [`At most ${trial.quota.toLocaleString("en")} requests in ${trial.name}${trial.burst ? `, at most ${trial.burst.toLocaleString("en")} at once` : ""}.`,
    ...lines(".answer"), ...lines(".given li"), `What to tell your customers: ${advice.customers}`, ...lines(".traffic"), "", ...rows, "", link].join("\n");
}
