// The rows of the page, one for each algorithm, and their comparison.

import { $, length, make, seconds, write } from "./dom.js";
import { Line } from "./line.js";
import { scene } from "./scene.js";
import { svg } from "./story/svg.js";

export let rows = new Map(); // algorithm → {line, and the elements that show it}
export let serial = 0;       // number of the next request
export let rivals;           // requests that two algorithms decide differently

// lay builds a row for each algorithm of the scene that has none yet, and removes the rows of
// algorithms that the scene does not have.
export function lay({ fresh, now, rows: heads, settings, users }) {
  if (fresh) {
    rows.forEach((r) => r.line.record.clear());
    serial = 0;
  }
  const kept = new Map();
  for (const head of heads) {
    const row = rows.get(head.algorithm) ?? newRow(head);
    row.line.record.configure(head, settings, users.length, now);
    row.line.fresh = false;
    row.lanes.replaceChildren(...users.map((user) => newLane(users.length > 1 && user)));
    kept.set(head.algorithm, row);
  }
  rows = kept;
  const elements = [...rows.values()].map((r) => r.element), shown = [...$("rows").children];
  if (elements.length !== shown.length || elements.some((e, i) => e !== shown[i])) $("rows").replaceChildren(...elements);
  $("rows").className = (rows.size <= 2 ? "two " : "") + (users.length > 1 ? "lanes3" : "");
}

function newRow(head) {
  const element = make("article", "row"), header = make("header"), facts = make("div", "facts");
  const title = make("h3", "", head.title), picture = svg("svg", { class: "line", role: "img", "aria-label": `Time line of ${head.title}. The latest requests are in a table below.`, "aria-describedby": "facts-" + head.algorithm });
  title.id = "title-" + head.algorithm;
  facts.id = "facts-" + head.algorithm;
  element.dataset.algorithm = head.algorithm;
  element.setAttribute("aria-labelledby", title.id);
  header.append(title, make("p", "", head.about));
  const lanes = make("div"), peak = make("div", "peak"), count = make("div", "count");
  const passed = make("span", "y"), refused = make("span", "n");
  count.append(passed, refused);
  facts.append(lanes, peak, count);
  element.append(header, picture, facts);
  return { element, lanes, peak, passed, refused, line: new Line(picture) };
}

function newLane(user) {
  const lane = make("div", "lane");
  if (user) lane.append(make("i", "", user));
  lane.append(make("b"), make("span", "", "left"), make("span", "retry"));
  return lane;
}

// take gives each row its part of a frame. It returns whether the frame has
// requests that the visitor sent with the button.
export function take(frame) {
  const first = serial;
  scene.now.rows.forEach((head, i) => {
    rows.get(head.algorithm).line.record.add(frame.rows[i], frame.now, first);
    serial = first + (frame.rows[i].hits?.length ?? 0);
  });
  return frame.rows[0].hits?.some((hit) => hit[7] === 1);
}

// tell shows the numbers of the latest frame.
export function tell() {
  const { frame } = scene, { quota, period } = scene.now.settings;
  for (const { line: { record }, lanes, peak, passed, refused } of rows.values()) {
    [...lanes.children].forEach((lane, i) => {
      if (!record.left[i]) return;
      const { remaining, next } = record.left[i], wait = next - frame.now;
      write(lane.querySelector("b"), remaining.toLocaleString("en"));
      write(lane.querySelector(".retry"), remaining === 0 && wait > 0 ? `${lanes.children.length > 1 ? "next" : "retry"} in ${seconds(wait)}` : "");
    });
    write(peak, record.peak ? `peak: ${record.peak.toLocaleString("en")} in ${length(period)}` : "");
    peak.classList.toggle("over", record.peak > quota);
    write(passed, `${record.passed.toLocaleString("en")} passed`);
    write(refused, `${record.refused.toLocaleString("en")} refused`);
  }
  compare();
  table();
}

function compare() {
  rivals = undefined;
  $("disagree").hidden = rows.size !== 2;
  if (rows.size !== 2) return;
  const [a, b] = [...rows.values()].map((r) => new Map(r.line.record.dots.map((d) => [d.n, d.ok])));
  rivals = new Set([...a.keys()].filter((n) => b.has(n) && a.get(n) !== b.get(n)));
  write($("disagree"), `They decide ${rivals.size} of the latest ${a.size} requests differently; a line marks those.`);
}

// table fills the table of the latest requests, if the reader has opened it.
let tabled = "";
function table() {
  const now = $("tableBox").open ? `${serial} ${scene.now.rows.length} ${scene.now.id}` : "";
  if (tabled === now) return;
  tabled = now;
  if (!now) return;
  const lines = [...rows.values()].map((r) => r.line.record), { users, start } = scene.now;
  const head = make("tr");
  for (const text of ["at", "user", ...lines.map((l) => l.head.title)]) {
    const th = make("th", "", text);
    th.scope = "col";
    head.append(th);
  }
  const body = lines[0].dots.slice(-12).reverse().map((d) => {
    const tr = make("tr");
    tr.append(make("td", "", seconds(d.t - start)), make("td", "", users[d.user] ?? ""));
    for (const line of lines) {
      const e = line.dots.findLast((e) => e.n === d.n);
      tr.append(make("td", "", !e ? "" : e.ok ? `● ${e.count > 1 ? e.count + " " : ""}passed, ${e.remaining} left` : `✕ refused, again in ${seconds(e.retry)}`));
    }
    return tr;
  });
  const thead = make("thead"), tbody = make("tbody");
  thead.append(head);
  tbody.append(...body);
  $("table").replaceChildren(thead, tbody);
}
