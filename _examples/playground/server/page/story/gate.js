// The first picture: traffic streams to two gates, a fixed window and GCRA, and the reader sends
// requests, too. The past moves to the left, and the gate stands at now.

import { frame } from "../beat.js";
import { Player, still } from "./player.js";
import { recorded } from "./recorded.js";
import { Stream } from "./stream.js";
import { at, box, bracket, label, line, mark, span, svg } from "./svg.js";
import { busiest, Ledger, second } from "./world.js";

const period = 10 * second, quota = 10;
const round = 20 * second;   // after this time the traffic is repeated
const ahead = 4 * second;    // how far the picture shows what comes
const high = 118;            // of a lane
const first = 31.6 * second; // the picture begins just after an attack
// A request a second, and in between 20 of them around the edge of a window. It is the worst that
// either limit can get.
const each = (n, from, gap) => Array.from({ length: n }, (_, i) => (from + i * gap) * second);
const script = [...each(7, 1.2, 1), ...each(20, 9.05, 0.1), ...each(8, 11.05, 1)];

const lanes = [
  { title: "Fixed window", note: "a count per window of 10 s", limit: { algorithm: "fixed-window", quota, period }, place: (d, up) => up(quota - d.decisions[0].remaining), under: windows },
  { title: "GCRA", note: "10 in 10 s, at most 2 at once", limit: { algorithm: "gcra", quota, period, burst: 2 }, place: (d, up) => up(0) - 24, under: rods },
];

// windows draws a box for each window, and rods a rod for each request that passed.
function windows({ base, up }, x, from, until, now) {
  const starts = Array.from({ length: Math.ceil((until - from) / period) + 1 }, (_, i) => (Math.floor(from / period) + i) * period);
  return starts.map((t) => box(x(t) + 1, up(quota) - 3, x(t + period) - x(t) - 2, base - up(quota) + 3, t <= now && now < t + period ? "box open" : "box"));
}

function rods({ base, dots }, x, from) {
  return dots.filter((d) => d.allowed && d.t >= from).map((d) => {
    const end = d.t + d.decisions[0].resetAfter, start = Math.max(d.t, end - period / quota);
    return box(x(start), base - 12, x(end) - x(start) - 1, 12, "rod");
  });
}

// A Recording answers in place of a Ledger until the library is loaded, with what the library has
// decided when the page was made: rows[i] is the answer to request i of the traffic.
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

// due is when request n of the traffic comes.
const due = (n) => Math.floor(n / script.length) * round + script[n % script.length];

// Until live is called, the library is not loaded: the traffic gets the answers of the recording, and
// stops where that ends, and the reader cannot send requests.
export class Gate extends Player {
  picture = svg("svg", { class: "gate", role: "img", "aria-label": "Requests arrive from the right at two limits, a fixed window above and GCRA below" });
  stream = new Stream();
  now; next; sent; width; loaded; begun;
  /** @type {any[]} */ lanes;

  constructor() {
    super("gate");
    this.find(".frame").replaceChildren(this.picture);
    this.find(".send").onclick = () => this.send(1);
    this.find(".burst").onclick = () => this.send(10);
    this.picture.onpointerdown = () => this.send(1);
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

  pace() { return still.matches ? 500 : frame; }

  advance(gone) {
    this.until(this.now + gone);
    this.fill();
    this.move();
  }

  // live goes on with the library, which has been loaded, in the states of the recording.
  live() {
    this.loaded = true;
    for (const lane of this.lanes) lane.ledger = Object.assign(new Ledger([lane.limit]), { states: lane.ledger.states });
    this.find(".bar").hidden = false;
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
      this.now += i ? 100e3 : 0;
      this.take(true);
      this.sent.push(Math.round(this.now));
    }
    this.sent = this.sent.slice(-200);
    const mine = this.lanes.map(({ dots }) => dots.slice(-n)), passed = mine.map((dots) => dots.filter((d) => d.allowed).length);
    const retry = this.lanes.map(({ dots }) => span(dots.at(-1).decisions[0].retryAfter));
    const one = (i) => passed[i] ? "passed" : `was refused: the next fits in ${retry[i]}`;
    this.reply.textContent = n === 1 ? `Your request ${one(0)} (fixed window), and ${one(1)} (GCRA).` : `Of your ${n} requests the fixed window admitted ${passed[0]} (the next fits in ${retry[0]}), and GCRA ${passed[1]} (in ${retry[1]}).`;
    this.fill();
    this.move();
    this.act();
  }

  // draw makes the picture anew.
  draw() {
    const w = this.width = this.picture.clientWidth || 760, narrow = w < 520, gate = w * (narrow ? 0.66 : 0.74), height = lanes.length * high + 8;
    this.picture.setAttribute("viewBox", `0 0 ${w} ${height}`);
    this.picture.setAttribute("height", height);
    this.lanes.forEach((lane, i) => {
      const base = (i + 1) * high - 18, up = (v) => base - v * 4.6;
      Object.assign(lane, {
        base, up, start: base - 10, number: label(gate + 14, base - 34, "", "big title"), bar: line(gate, base - 70, gate, base + 6, "post"),
        marks: (d) => [{ kind: d.allowed ? "passed" : "refused", y: d.allowed ? lane.place(d, up) : up(12.4) }],
        back: (from, until, now) => this.back(lane, from, until, now),
      });
    });
    const moving = this.stream.draw({ width: w, height, gate, scale: (w - gate) / ahead, lanes: this.lanes, now: this.now });
    this.picture.replaceChildren(...this.lanes.map(({ base }) => line(0, base, w, base, "rule")), moving, ...this.lanes.flatMap(({ base, bar, number, title, note }) => [bar, number, label(0, base - 82, title, "strong title"),
      label(narrow ? 0 : 14 + title.length * 8, narrow ? base - 68 : base - 82, narrow ? "" : note, "soft title"), label(gate + 14, base - 76, narrow ? "worst 10 s" : "the worst 10 s", "soft title")]));
    this.fill();
    this.move();
  }

  // fill draws new requests, and writes the numbers.
  fill() {
    this.stream.fill(this.now, still.matches || !this.playing);
    for (const { number, worst, bar, dots } of this.lanes) {
      this.write(number, String(worst.n));
      number.classList.toggle("alarm", worst.n > quota + 1);
      bar.classList.toggle("closed", dots.at(-1)?.allowed === false && this.now - dots.at(-1).t < second);
    }
    const [{ worst: a }, { worst: b }] = this.lanes;
    this.write(this.words, `Within ${period / second} s the fixed window let ${a.n} through, and GCRA ${b.n}. Both limits say ${quota}; GCRA allows 2 at once, then one a second, so ${quota} + 2 − 1 is its most.`);
  }

  // back draws what lies behind the marks: the windows or rods, the worst 10 s, and what comes.
  back(lane, from, until, now) {
    const x = (t) => this.stream.x(t), { n, from: a, to: b } = lane.worst, drawn = lane.under(lane, x, from, until, now);
    if (n > 1 && b > from) drawn.push(...bracket(x(a), x(b), lane.base + 11, 4, n > quota + 1 ? "bracket alarm" : "bracket"));
    for (let n = this.next; due(n) < now + ahead + second; n++) drawn.push(at(x(due(n)), lane.start, mark("waiting")));
    return drawn;
  }

  move() { this.stream.move(this.now); }
}
