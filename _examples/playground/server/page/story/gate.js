// The first picture: traffic streams to two gates, a fixed window and GCRA, and the reader sends
// requests, too. The past moves to the left, and the gate stands at now.

import { beat, frame, inView } from "../beat.js";
import { at, box, label, line, mark, span, svg } from "./svg.js";
import { recorded } from "./recorded.js";
import { busiest, Ledger, second } from "./world.js";

const still = matchMedia("(prefers-reduced-motion: reduce)");
const period = 10 * second, quota = 10;
const round = 20 * second;   // after this time the traffic is repeated
const ahead = 4 * second;    // how far the picture shows what comes
const high = 118;            // of a lane
const first = 31.6 * second; // the picture begins just after an attack
const fall = 25e4;           // the µs for which a dot moves to its place
// A request a second, and in between 20 of them around the edge of a window. It is the worst that
// either limit can get.
const each = (n, from, gap) => Array.from({ length: n }, (_, i) => (from + i * gap) * second);
const script = [...each(7, 1.2, 1), ...each(20, 9.05, 0.1), ...each(8, 11.05, 1)];

const lanes = [
  { title: "Fixed window", note: "a count per window of 10 s", limit: { algorithm: "fixed-window", quota, period } },
  { title: "GCRA", note: "10 in 10 s, at most 2 at once", limit: { algorithm: "gcra", quota, period, burst: 2 } },
];

// A Recording answers in place of a Ledger until the library is loaded, with what the library has
// decided when the page was made. row[i] is the answer to the request i of the traffic.
class Recording {
  i = 0; states = {};
  constructor(rows) { this.rows = rows; }
  take() {
    const [allowed, remaining, retryAfter, nextAfter, resetAfter, At, A, B, Until] = this.rows[this.i++];
    this.states = { "": [{ At, A, B, C: 0, Log: null, Until }] };
    return { allowed: allowed === 1, wait: 0, decisions: [{ allowed: allowed === 1, remaining, retryAfter, nextAfter, resetAfter }] };
  }
}

// record returns the rows of a Recording. It needs the library.
export function record(until = 75 * second) {
  return lanes.map(({ limit }) => {
    const ledger = new Ledger([limit]), rows = [];
    for (let n = 0; due(n) <= until; n++) {
      const { allowed, decisions: [d], states: [s] } = ledger.take(Math.round(due(n)));
      rows.push([allowed ? 1 : 0, d.remaining, d.retryAfter, d.nextAfter, d.resetAfter, s.At, s.A, s.B, s.Until]);
    }
    return rows;
  });
}

// due is when the request n of the traffic comes.
const due = (n) => Math.floor(n / script.length) * round + script[n % script.length];

// Until live is called, the library is not loaded: the traffic has the answers of the recording, and
// stops where that ends, and the reader cannot send requests.
export class Gate {
  root; picture; button; words; reply; shown; playing; stop; now; next; sent; width; height; gate; scale; loaded; begun;
  /** @type {any[]} */ lanes;

  constructor() {
    this.root = document.getElementById("gate");
    const find = (selector) => this.root.querySelector(selector);
    this.picture = svg("svg", { class: "gate", role: "img", "aria-label": "Requests arrive from the right at two limits, a fixed window above and GCRA below" });
    find(".frame").replaceChildren(this.picture);
    Object.assign(this, { button: find(".play"), words: find(".say"), reply: find(".why") });
    find(".send").onclick = () => this.send(1);
    find(".burst").onclick = () => this.send(10);
    find(".reset").onclick = () => this.reset();
    this.picture.onpointerdown = () => this.send(1);
    this.button.onclick = () => (this.playing ? this.pause() : this.start());
    this.shown = inView(this.picture);
    this.reset();
    new ResizeObserver(() => { if (this.picture.clientWidth !== this.width) this.draw(); }).observe(this.picture);
  }

  reset() {
    this.next = 0;  // number of the next request of the traffic
    this.sent = []; // when the reader sent requests, for “Which one?”
    this.lanes = lanes.map((l, i) => ({ ...l, ledger: this.loaded ? new Ledger([l.limit]) : new Recording(recorded[i]), dots: [], worst: { n: 0 } }));
    this.invite();
    this.until(first);
    this.draw();
  }

  // live goes on with the library, which has been loaded, in the states of the recording.
  live() {
    this.loaded = true;
    for (const lane of this.lanes) lane.ledger = Object.assign(new Ledger([lane.limit]), { states: lane.ledger.states });
    this.root.querySelector(".bar").hidden = false;
    this.invite();
  }

  invite() { this.reply.textContent = this.loaded ? "You are a client, too: click the picture." : ""; }

  // until sends the requests of the traffic that are due by an instant.
  until(now) {
    if (!this.loaded) now = Math.min(now, due(recorded[0].length) - 1);
    for (; due(this.next) <= now; this.next++) {
      this.now = due(this.next);
      this.take();
    }
    this.now = now;
  }

  take(mine) {
    const t = Math.round(this.now);
    for (const lane of this.lanes) {
      const { allowed, decisions: [d] } = lane.ledger.take(t);
      lane.dots.push({ t, allowed, mine, cost: 1, wait: 0, decisions: [d] });
      if (lane.dots.length > 150) lane.dots.shift();
      const best = busiest(lane.dots.filter((d) => d.t > t - period), period);
      if (best.n >= lane.worst.n) lane.worst = best; // of equal ones the latest, which is in view
    }
  }

  // send sends requests of the reader, now.
  send(n) {
    if (!this.loaded) {
      this.reply.textContent = "You can send requests as soon as the library has been loaded.";
      return;
    }
    for (let i = 0; i < n; i++) {
      this.now += i ? 20e3 : 0;
      this.take(true);
      this.sent.push(Math.round(this.now));
    }
    this.sent = this.sent.slice(-200);
    const mine = this.lanes.map(({ dots }) => dots.slice(-n)), passed = mine.map((dots) => dots.filter((d) => d.allowed).length);
    const retry = this.lanes.map(({ dots }) => span(dots.at(-1).decisions[0].retryAfter));
    const one = (i) => passed[i] ? "passed" : `was refused: the next fits in ${retry[i]}`;
    this.reply.textContent = n === 1 ? `Your request ${one(0)} (fixed window), and ${one(1)} (GCRA).` : `Of your ${n} requests the fixed window admitted ${passed[0]}, and GCRA ${passed[1]}.`;
    this.fill();
    if (!this.playing) this.move();
  }

  start() {
    this.playing = true;
    this.button.textContent = "Pause";
    let before;
    this.stop?.();
    this.stop = beat(() => (still.matches ? 500 : frame), (time) => {
      this.until(this.now + Math.min(600, time - (before ?? time)) * 1e3);
      before = time;
      this.fill();
      this.move();
    }, this.shown);
  }

  pause() {
    this.playing = false;
    this.button.textContent = "Play";
    this.stop?.();
  }

  // draw makes the picture anew.
  draw() {
    const w = this.width = this.picture.clientWidth || 760, narrow = w < 520;
    this.gate = w * (narrow ? 0.66 : 0.74);
    this.scale = (w - this.gate) / ahead;
    this.height = lanes.length * high + 8;
    this.picture.setAttribute("viewBox", `0 0 ${w} ${this.height}`);
    this.picture.setAttribute("height", this.height);
    const parts = this.lanes.map((lane, i) => {
      const y = i * high, base = y + high - 18, up = (v) => base - v * 4.6;
      const old = svg("g"), marks = svg("g"), coming = svg("g"), moving = svg("g", {}, old, marks, coming);
      const clip = svg("svg", { x: 0, y, width: w, height: high, viewBox: `0 ${y} ${w} ${high}` }, moving);
      const number = label(this.gate + 14, y + 66, "", "big title"), bar = line(this.gate, y + 30, this.gate, base + 6, "post");
      Object.assign(lane, { old, marks, coming, moving, number, bar, up, base, shown: new Map(), last: "" });
      return svg("g", {}, line(0, base, w, base, "rule"), clip, bar, label(0, y + 18, lane.title, "strong title"),
        label(narrow ? 0 : 14 + lane.title.length * 8, narrow ? y + 32 : y + 18, narrow ? "" : lane.note, "soft title"), number, label(this.gate + 14, y + 24, narrow ? "worst 10 s" : "the worst 10 s", "soft title"));
    });
    this.picture.replaceChildren(...parts);
    this.fill();
    this.move();
  }

  // fill adds marks for new requests, removes old ones, and writes the numbers.
  fill() {
    const from = this.now - this.gate / this.scale - second;
    for (const lane of this.lanes) {
      for (const d of lane.dots) {
        if (lane.shown.has(d) || d.t < from) continue;
        const e = svg("g", {}, mark(d.allowed ? "passed" : "refused"));
        if (d.mine) e.append(svg("circle", { r: 8, class: "mine" }));
        lane.shown.set(d, e);
        lane.marks.append(e);
        d.way = undefined;
      }
      for (const [d, e] of lane.shown) {
        if (d.t >= from) continue;
        e.remove();
        lane.shown.delete(d);
      }
      const key = `${Math.floor(this.now / 2e5)} ${lane.dots.length} ${this.next} ${lane.worst.n}`;
      if (lane.last === key) continue;
      lane.last = key;
      lane.number.textContent = lane.worst.n;
      lane.number.classList.toggle("alarm", lane.worst.n > quota + 1);
      const coming = [];
      for (let n = this.next; due(n) < this.now + ahead + second; n++) coming.push(at(due(n) * this.scale, lane.base - 10, mark("waiting")));
      lane.coming.replaceChildren(...coming);
      lane.old.replaceChildren(...this.back(lane));
    }
    const [{ worst: a }, { worst: b }] = this.lanes;
    const text = `Within ${period / second} s the fixed window let ${a.n} through, and GCRA ${b.n}. Both limits say ${quota}.`;
    if (this.words.textContent !== text) this.words.textContent = text;
  }

  // back draws what lies behind the marks: the windows, or the row of GCRA, and the worst 10 s.
  back(lane) {
    const { scale, now } = this, drawn = [], from = now - this.gate / scale - second, to = now + ahead + second;
    if (lane.limit.algorithm === "fixed-window") {
      for (let t = Math.floor(from / period) * period; t < to; t += period) drawn.push(box(t * scale + 1, lane.up(quota) - 3, period * scale - 2, lane.base - lane.up(quota) + 3, t <= now && now < t + period ? "box open" : "box"));
    } else {
      for (const d of lane.dots) {
        if (!d.allowed || d.t < from) continue;
        const end = d.t + d.decisions[0].resetAfter, start = Math.max(d.t, end - period / quota);
        drawn.push(box(start * scale, lane.base - 12, (end - start) * scale - 1, 12, "rod"));
      }
    }
    const { n, from: a, to: b } = lane.worst, y = lane.base + 11;
    if (n > 1 && b > from) drawn.push(line(a * scale, y, b * scale, y, n > quota + 1 ? "bracket alarm" : "bracket"), line(a * scale, y - 4, a * scale, y + 4, n > quota + 1 ? "bracket alarm" : "bracket"), line(b * scale, y - 4, b * scale, y + 4, n > quota + 1 ? "bracket alarm" : "bracket"));
    return drawn;
  }

  // move moves the past, and drops the latest marks to their places.
  move() {
    const { now, scale } = this, dx = (this.gate - now * scale).toFixed(1);
    for (const lane of this.lanes) {
      lane.moving.setAttribute("transform", `translate(${dx} 0)`);
      const closed = lane.dots.at(-1)?.allowed === false && now - lane.dots.at(-1).t < second;
      lane.bar.classList.toggle("closed", closed);
      for (const [d, e] of lane.shown) {
        const way = still.matches ? 1 : Math.min(1, (now - d.t) / fall);
        if (way === d.way) continue;
        d.way = way;
        const start = lane.base - 10, end = !d.allowed ? lane.up(12.4) : lane.limit.algorithm === "gcra" ? lane.base - 24 : lane.up(quota - d.decisions[0].remaining);
        at(d.t * scale, start + (end - start) * way ** 2, e);
      }
    }
  }
}
