// Gates: traffic streams to limits, one below the other, and the reader sends requests, too. The
// past moves to the left, and each gate stands at now.

import { frame } from "../beat.js";
import { gate as scene } from "./gate.js";
import { Player, still } from "./player.js";
import { recorded } from "./recorded.js";
import { Stream } from "./stream.js";
import { at, bracket, label, line, mark, span, svg } from "./svg.js";
import { busiest, Ledger, second } from "./world.js";

const { period, quota, ahead } = scene;
const high = 118; // of a lane

// A Recording answers in place of a Ledger until the library is loaded, with what the library has
// decided when the page was made: rows has the answers to a round of the traffic, which are the same
// in each round.
class Recording {
  i = 0;
  constructor(rows) { this.rows = rows; }
  take() {
    const [allowed, remaining, retryAfter, nextAfter, resetAfter] = this.rows[this.i++ % this.rows.length];
    return { allowed: allowed === 1, wait: 0, decisions: [{ allowed: allowed === 1, remaining, retryAfter, nextAfter, resetAfter }] };
  }
}

// record returns the rows of a Recording for a round of the traffic. It needs the library.
export function record(round) {
  return scene.lanes.map(({ limit }) => replayed(limit, (round + 1) * scene.script.length).rows.slice(-scene.script.length));
}

// replayed decides the first requests of the traffic.
function replayed(limit, until) {
  const ledger = new Ledger([limit]), rows = [];
  for (let n = 0; n < until; n++) {
    const { allowed, decisions: [d] } = ledger.take(Math.round(due(n)));
    rows.push([allowed ? 1 : 0, d.remaining, d.retryAfter, d.nextAfter, d.resetAfter]);
  }
  return { ledger, rows };
}

// due is when request n of the traffic comes.
const due = (n) => Math.floor(n / scene.script.length) * scene.round + scene.script[n % scene.script.length];

// Until live is called, the library is not loaded: the traffic gets the answers of the recording, and
// the reader cannot send requests.
export class Gates extends Player {
  picture = svg("svg", { class: "gate", role: "img", "aria-label": "Requests arrive from the right at two limits, a fixed window above and GCRA below" });
  stream = new Stream();
  now; next; sent; bursts; width; loaded; begun;
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
    this.next = 0;    // number of the next request of the traffic
    this.sent = [];   // when the reader sent requests, for “Which one?”
    this.bursts = []; // when the reader sent several: {from, to, n}
    this.lanes = scene.lanes.map((l, i) => ({ ...l, ledger: this.loaded ? new Ledger([l.limit]) : new Recording(recorded[i]), dots: [], worst: { n: 0 } }));
    this.invite();
    this.until(scene.first);
    this.draw();
  }

  pace() { return still.matches ? 500 : frame; }

  advance(gone) {
    this.until(this.now + gone);
    this.fill();
    this.move();
  }

  // live goes on with the library, which has been loaded: it decides all of the traffic so far again.
  live() {
    this.loaded = true;
    for (const lane of this.lanes) lane.ledger = replayed(lane.limit, this.next).ledger;
    this.find(".bar").hidden = false;
    this.invite();
  }

  invite() { this.reply.textContent = this.loaded ? "You are a client, too: click or tap the picture." : ""; }

  // until sends the requests of the traffic that are due by an instant.
  until(now) {
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
    return t;
  }

  // send sends requests of the reader, now.
  send(n) {
    if (!this.loaded) {
      this.reply.textContent = document.body.classList.contains("lost") ? "The library could not be loaded, so you cannot send requests." : "You can send requests as soon as the library has been loaded.";
      return;
    }
    const times = Array.from({ length: n }, (_, i) => {
      this.now += i ? 100e3 : 0;
      return this.take(n === 1);
    });
    if (n > 1) this.bursts = [...this.bursts.slice(-9), { from: times[0], to: times.at(-1), n }];
    this.sent = [...this.sent, ...times].slice(-200);
    this.reply.textContent = this.lanes.map(({ title, dots, why }, i) => {
      const passed = dots.slice(-n).filter((d) => d.allowed).length, { retryAfter } = dots.at(-1).decisions[0];
      if (n === 1) return `${title}: ${passed ? "passed" : `refused, because ${why}; the next fits in ${span(retryAfter)}`}.`;
      return `${title}: ${passed === n ? "all" : passed ? `only ${passed}` : "none"}${i ? "" : ` of your ${n} passed`}${passed === n ? "" : `, because ${why}`}.`;
    }).join(" ");
    this.fill();
    this.move();
    this.act();
  }

  // draw makes the picture anew.
  draw() {
    const w = this.width = this.picture.clientWidth || 760, narrow = w < 520, gate = w * (narrow ? 0.66 : 0.74), height = this.lanes.length * high + 8;
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
    this.write(this.words, scene.say(this.lanes));
  }

  // back draws what lies behind the marks: the windows or rods, the worst 10 s, the bursts of the
  // reader, and what comes.
  back(lane, from, until, now) {
    const x = (t) => this.stream.x(t), { n, from: a, to: b } = lane.worst, drawn = lane.under(lane, x, from, until, now);
    if (n > 1 && b > from) drawn.push(...bracket(x(a), x(b), lane.base + 11, 4, n > quota + 1 ? "bracket alarm" : "bracket"));
    this.bursts.forEach(({ from: a, to: b, n }, i) => {
      const near = i && x(a) - x(this.bursts[i - 1].to) < 80; // no room for a label
      if (b > from) drawn.push(...bracket(x(a) - 4, x(b) + 4, lane.base - 68, 3, "bracket"), label(x(a) - 10, lane.base - 64, near ? "" : `your ${n}`, "end strong title"));
    });
    for (let n = this.next; due(n) < now + ahead + second; n++) drawn.push(at(x(due(n)), lane.start, mark("waiting")));
    return drawn;
  }

  move() { this.stream.move(this.now); }
}
