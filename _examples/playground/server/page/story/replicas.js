// Three replicas that share a limit, with or without a Hybrid in front of the store. This is the
// library's own Hybrid, on the clock of the computer.

import { Player } from "./player.js";
import { at, box, label, line, mark, patch, plural, span, svg } from "./svg.js";
import { tasks } from "./tasks.js";
import { weir } from "./world.js";

const charge = JSON.stringify({ algorithm: "sliding-log", quota: 10, period: 10e6, burst: 10, key: "visitor", cost: 1 });
export const names = ["A", "B", "C"];
const columns = 10;       // the latest requests of a replica, each in a place of its own
const seen = 1500; // a call is drawn paler after this time, in ms

// A Site draws replicas, their latest requests and the store.
export class Site extends Player {
  picture; store; each; sent; passed; asked; turn; down; tried; // what the methods share

  constructor(id, name, store = "the store") {
    super(id, tasks[id]);
    this.store = store;
    this.picture = svg("svg", { class: "replicas", role: "img", "aria-label": name });
    this.find(".stage .frame").replaceChildren(this.picture);
    for (const b of this.root.querySelectorAll("[data-replica]")) b.onclick = () => {
      this.send(Number(b.dataset.replica), 10);
      this.draw();
      this.act();
    };
    new ResizeObserver(() => this.draw()).observe(this.picture);
    this.reset();
    this.check();
  }

  // What a subclass defines: reset, take sends a request to replica i, send sends n and tells the
  // answer, and say returns a sentence.
  take(_i) {}
  send(_i, _n) {}
  say() { return ""; }

  // keep keeps a call of replica i: {allowed, asked}.
  keep(i, call) {
    const each = this.each[i], n = each.sent++;
    each.asked += call.asked;
    each.calls[n % columns] = { ...call, i, column: n % columns, seen: performance.now() };
    this.sent++;
    this.passed += call.allowed;
    this.asked += call.asked;
    return call;
  }

  clear() {
    Object.assign(this, { turn: 0, sent: 0, passed: 0, asked: 0, each: names.map(() => ({ sent: 0, asked: 0, calls: [] })) });
  }

  advance() {
    if (this.turn++ % 2 === 0) this.take(Math.floor(this.turn / 2) % names.length);
    this.draw();
  }

  draw() {
    if (!this.each) return;
    const w = this.picture.clientWidth || 760, h = 250, now = performance.now(), drawn = [];
    this.picture.setAttribute("viewBox", `0 0 ${w} ${h}`);
    const x = (i) => w * (i + 0.5) / names.length, half = Math.min(80, w / 7), gap = half * 2 / columns;
    drawn.push(box(w / 2 - 90, 198, 180, 44, this.down ? "vessel down" : "vessel"), label(w / 2, 217, this.store, "middle strong"), label(w / 2, 234, this.down ? "does not answer" : plural(this.asked, "call"), `middle ${this.down ? "alarm" : "soft"}`));
    names.forEach((name, i) => {
      const { sent, asked } = this.each[i];
      drawn.push(box(x(i) - half, 40, 2 * half, 58, "vessel"), label(x(i), 60, `replica ${name}`, "middle strong"), label(x(i), 76, plural(sent, "request"), "middle soft"), label(x(i), 91, plural(asked, "call"), "middle soft"));
    });
    for (const call of this.each.flatMap((e) => e.calls)) {
      const age = (now - call.seen) / seen, from = x(call.i) + (call.column + 0.5 - columns / 2) * gap, pale = Math.max(0.6, 1 - age * age), way = svg("g", { "fill-opacity": pale, "stroke-opacity": pale });
      way.append(at(from, 20, mark(call.allowed ? "passed" : "refused", Math.min(4.5, gap / 2 - 1))));
      if (call.asked) way.append(line(from, 98, w / 2 + (from - x(call.i)) * 0.6 + (call.i - 1) * 30, 198, call.allowed ? "call" : "call bad"));
      else way.append(line(from, 98, from, 116, "spared"), line(from - 3, 116, from + 3, 116, "spared"));
      drawn.push(way);
    }
    patch(this.picture, ...drawn);
    this.write(this.words, this.say());
  }
}

export class Replicas extends Site {
  constructor() {
    super("replicas", "Three replicas and the store that they share");
    this.hybrid.onchange = () => {
      this.reset();
      this.act();
    };
  }

  get hybrid() { return this.find(".hybrid"); }

  reset() {
    this.clear();
    weir.share(names.length, this.hybrid.checked);
    for (let i = 0; i < 18; i++) this.take(i % names.length);
    this.draw();
  }

  take(i) { return this.keep(i, JSON.parse(weir.take(i, charge))); }

  send(i, n) {
    let last;
    for (let k = 0; k < n; k++) last = this.take(i);
    this.reply.textContent = last.allowed ? `Replica ${names[i]}: the last of ${n} requests passed.` :
      `Replica ${names[i]}: the last of ${n} requests was refused` + (last.asked ? " by the store." : " without asking the store.") + ` The next fits in ${span(last.retryAfter)}.`;
  }

  say() {
    const never = this.sent - this.asked;
    return `So far ${this.passed} of ${this.sent} requests passed. The store was asked ${plural(this.asked, "time")}` + (never ? `; ${plural(never, "call was", "calls were")} not made.` : ".");
  }
}
