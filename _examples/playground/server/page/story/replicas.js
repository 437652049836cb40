// Three replicas that share a limit, with or without a Hybrid in front of the store. This is the
// library's own Hybrid, on the clock of the computer.

import { beat, inView } from "../beat.js";
import { library } from "../library.js";
import { at, box, label, line, mark, patch, span, svg } from "./svg.js";

const charge = JSON.stringify({ algorithm: "sliding-log", quota: 10, period: 10e6, burst: 10, key: "visitor", cost: 1 });
const names = ["A", "B", "C"];
const seen = 1500; // a call is drawn paler after this time, in ms

export class Replicas {
  constructor() {
    this.root = document.getElementById("replicas");
    const find = (selector) => this.root.querySelector(selector);
    this.picture = svg("svg", { class: "replicas", role: "img", "aria-label": "Three replicas and the store that they share" });
    find(".stage .frame").replaceChildren(this.picture);
    Object.assign(this, { button: find(".play"), hybrid: find(".hybrid"), words: find(".say"), reply: find(".why") });
    this.button.onclick = () => (this.playing ? this.pause() : this.start());
    this.hybrid.onchange = () => this.reset();
    find(".reset").onclick = () => this.reset();
    for (const b of this.root.querySelectorAll("[data-replica]")) b.onclick = () => this.send(Number(b.dataset.replica), 10);
    new ResizeObserver(() => this.draw()).observe(this.picture);
    this.shown = inView(this.picture);
    this.ready = this.reset();
  }

  async reset() {
    this.weir = await library();
    this.weir.share(names.length, this.hybrid.checked);
    Object.assign(this, { calls: [], sent: 0, passed: 0, asked: 0, each: names.map(() => ({ sent: 0, asked: 0 })) });
    for (let i = 0; i < 18; i++) this.take(i % names.length);
    this.draw();
  }

  take(i) {
    const call = JSON.parse(this.weir.take(i, charge));
    this.calls = [...this.calls.slice(-20), { ...call, i, n: this.each[i].sent, seen: performance.now() }];
    this.sent++;
    this.passed += call.allowed;
    this.asked += call.asked;
    this.each[i].sent++;
    this.each[i].asked += call.asked;
    return call;
  }

  send(i, n) {
    let last;
    for (let k = 0; k < n; k++) last = this.take(i);
    this.reply.textContent = last.allowed ? `Replica ${names[i]}: the last of ${n} requests passed.` :
      `Replica ${names[i]}: the last of ${n} requests was refused` + (last.asked ? " by the store." : " without asking the store.") + ` The next fits in ${span(last.retryAfter)}.`;
    this.draw();
    if (!this.playing) setTimeout(() => this.draw(), seen + 50);
  }

  start() {
    this.playing = true;
    this.button.textContent = "Pause";
    let n = 0;
    this.stop?.();
    this.stop = beat(() => 200, () => {
      if (n++ % 2 === 0) this.take(Math.floor(n / 2) % names.length);
      this.draw();
    }, this.shown);
  }

  pause() {
    this.playing = false;
    this.button.textContent = "Play";
    this.stop?.();
  }

  draw() {
    if (!this.each) return;
    const w = this.picture.clientWidth || 600, h = 250, now = performance.now(), drawn = [];
    this.picture.setAttribute("viewBox", `0 0 ${w} ${h}`);
    const x = (i) => w * (i + 0.5) / names.length, half = Math.min(80, w / 7);
    drawn.push(box(w / 2 - 90, 198, 180, 44, "vessel"), label(w / 2, 217, "the store", "middle strong"), label(w / 2, 234, `${this.asked} calls`, "middle soft"));
    names.forEach((name, i) => {
      const { sent, asked } = this.each[i];
      drawn.push(box(x(i) - half, 40, 2 * half, 58, "vessel"), label(x(i), 60, `replica ${name}`, "middle strong"), label(x(i), 76, `${sent} requests`, "middle soft"), label(x(i), 91, `${asked} calls`, "middle soft"));
    });
    for (const call of this.calls) {
      const age = (now - call.seen) / seen, dx = (call.n % 7 - 3) * half / 4, pale = Math.max(0.6, 1 - age * age), way = svg("g", { "fill-opacity": pale, "stroke-opacity": pale });
      way.append(at(x(call.i) + dx, 20, mark(call.allowed ? "passed" : "refused")));
      if (call.asked) way.append(line(x(call.i) + dx, 98, w / 2 + dx * 0.6 + (call.i - 1) * 30, 198, call.allowed ? "call" : "call bad"));
      else way.append(line(x(call.i) + dx, 98, x(call.i) + dx, 116, "spared"), line(x(call.i) + dx - 4, 116, x(call.i) + dx + 4, 116, "spared"));
      drawn.push(way);
    }
    patch(this.picture, ...drawn);
    const never = this.sent - this.asked;
    this.words.textContent = `${this.sent} requests, ${this.passed} passed. The store was asked ${this.asked} times` + (never ? `; ${never} calls were not made.` : ".");
  }
}
