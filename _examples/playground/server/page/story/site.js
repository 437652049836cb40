// Servers (replicas) behind one limit, their latest requests, and the store that they call.

import { Player } from "./player.js";
import { at, box, label, line, mark, patch, plural, svg } from "./svg.js";
import { tasks } from "./tasks.js";

export const names = ["A", "B", "C"];
const columns = 10;       // the latest requests of a replica: the newest is the last
const seen = 3000;        // after so many ms a call is no longer drawn
export const period = 10e3; // of the limit, in ms

// A call is a request: {i, at, status, asked, retryAfter, allowed}.
export class Site extends Player {
  picture; store; weir; calls; sent; asked; turn; down; since; tried; // what the methods share

  constructor(id, name, store, weir) {
    super(id, tasks[id]);
    Object.assign(this, { store, weir });
    this.picture = svg("svg", { class: "replicas", role: "img", "aria-label": name });
    const frame = this.find(".stage .frame");
    frame.classList.remove("still");
    frame.replaceChildren(this.picture);
    for (const b of this.root.querySelectorAll("[data-replica]")) this.on(b, "click", () => {
      this.reply.textContent = this.send(Number(b.dataset.replica), 10);
      this.draw();
    });
    this.on(this.find("select"), "change", () => this.change());
    new ResizeObserver(() => this.draw()).observe(this.picture);
    this.reset();
    this.check();
  }

  // on lets a control do something, and then goes on.
  on(control, event, f) {
    control.addEventListener(event, () => {
      f();
      this.act();
    });
  }

  // What a subclass defines: ask sends a request to replica i, and returns the status, whether the
  // store decided, and the wait after a refusal; answer says what became of calls;
  // say returns a sentence; apart is whether there is no store;
  // change is called when the reader has made another choice.
  ask(_i) { return [0, false, 0]; }
  answer(_i, _calls) { return ""; }
  say() { return ""; }
  get apart() { return false; }
  change() { this.reset(); }

  get choice() { return this.find("select").value; }

  take(i) {
    const [status, asked, retryAfter] = this.ask(i), call = { i, at: performance.now(), status, asked, retryAfter, allowed: status === 200 };
    this.calls = [...this.calls.slice(-300), call];
    this.sent[i]++;
    this.asked[i] += asked;
    return call;
  }

  send(i, n) { return this.answer(i, Array.from({ length: n }, () => this.take(i))); }

  // recent returns the calls of the last period that have a status.
  recent(status) { return this.calls.filter((c) => c.status === status && performance.now() - c.at < period).length; }

  begin(n) {
    Object.assign(this, { turn: 0, calls: [], sent: names.map(() => 0), asked: names.map(() => 0) });
    for (let i = 0; i < n; i++) this.take(i % names.length);
    this.draw();
  }

  advance() {
    if (this.turn++ % 2 === 0) this.take(Math.floor(this.turn / 2) % names.length);
    this.draw();
    this.check();
  }

  draw() {
    if (!this.calls) return;
    const w = this.picture.clientWidth || 760, h = 250, now = performance.now(), drawn = [], n = this.asked.reduce((a, b) => a + b, 0);
    this.picture.setAttribute("viewBox", `0 0 ${w} ${h}`);
    const x = (i) => w * (i + 0.5) / names.length, half = Math.min(80, w / 7), gap = half * 2 / columns;
    if (this.apart) drawn.push(label(w / 2, 180, `${names.length} counts of 10 each`, "middle strong"));
    else drawn.push(box(w / 2 - 90, 198, 180, 44, this.down ? "vessel down" : "vessel"), label(w / 2, 217, this.store, "middle strong"), label(w / 2, 234, this.down ? "does not answer" : plural(n, "call"), `middle ${this.down ? "alarm" : "soft"}`));
    names.forEach((name, i) => {
      drawn.push(box(x(i) - half, 40, 2 * half, 58, "vessel"), label(x(i), 60, `replica ${name}`, "middle strong"), label(x(i), 76, plural(this.sent[i], "request"), "middle soft"), label(x(i), 91, this.apart ? "own count" : plural(this.asked[i], "call"), "middle soft"));
      this.calls.filter((c) => c.i === i).slice(-columns).forEach((call, column) => {
        const from = x(i) + (column + 0.5 - columns / 2) * gap, way = svg("g");
        way.append(at(from, 20, mark(call.allowed ? "passed" : "refused", Math.min(4.5, gap / 2 - 1))));
        if (call.asked && !call.old && now - call.at < seen) way.append(line(from, 98, w / 2 + (from - x(i)) * 0.6 + (i - 1) * 30, 198, call.allowed ? "call" : "call bad"));
        else if (!call.asked && !this.apart) way.append(line(from, 98, from, 116, "spared"), line(from - 3, 116, from + 3, 116, "spared"));
        drawn.push(way);
      });
    });
    patch(this.picture, ...drawn);
    this.write(this.words, this.say());
  }
}
