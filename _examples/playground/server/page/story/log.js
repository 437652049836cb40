// A log: every request that passed counts for one period.

import { attack } from "./traffic.js";
import { bars, lanes } from "./lanes.js";
import { lit, say } from "./prose.js";
import { box, clock, label, plural } from "./svg.js";
import { second } from "./world.js";

const ends = (tape) => (d) => d.t + tape.limits[0].period;
const kept = (tape) => tape.passed.filter((d) => d.t > tape.now - tape.limits[0].period);

export const log = {
  id: "log", name: "a sliding log", gaugeName: "The times that the log keeps now",
  length: 30, start: 13,
  limits: [{ algorithm: "sliding-log", quota: 10, period: 10 }],
  requests: attack,
  rows: [{
    title: "requests that count", height: 170, max: 14, limit: "quota",
    place: (d, tape) => d.allowed ? lanes(tape, ends(tape)).get(d) + 0.5 : tape.limits[0].quota + 1,
    live: (tape, area) => bars(tape, area, ends(tape), 6),
  }],
  gauge(tape, w, h) {
    const times = kept(tape), rows = Math.floor((h - 40) / 15), cols = times.length > rows ? 2 : 1, fit = rows * cols;
    const drawn = [label(w / 2, 16, plural(times.length, "stored time"), "middle strong"), box(4, 24, w - 8, h - 32, "vessel")];
    times.slice(0, fit).forEach((d, i) => drawn.push(label(w * (i % cols + 0.5) / cols, 42 + Math.floor(i / cols) * 15, clock(d.t), "middle small")));
    return drawn;
  },
  say(tape) {
    const n = kept(tape).length;
    return `The log keeps the times of ${plural(n, "request")} now. A fixed window keeps 1 number.`;
  },
  tells: {
    lesson(tape) {
      const { quota, period } = tape.limits[0], p = period / second, no = tape.past.filter((d) => !d.allowed).length;
      return say`${[tape.changed ? "Whatever you send, a" : "These are the requests of scene 1. A"]} log has no edge: any ${p} s, wherever they begin, hold at most ${quota}. So far it has refused ${plural(no, "request")}. The price is memory: ${lit("a time for each request", ".stayed, .small")}, up to ${quota} for each client.`;
    },
  },
  why(d, { dots, limits: [{ quota, period }] }) {
    if (d.allowed) return `It counts until ${clock(d.t + period)}.`;
    const oldest = dots.find((e) => e.allowed && e.t > d.t - period);
    return `The ${period / second} s before it already hold ${quota}. The oldest of them leaves at ${clock(oldest.t + period)}.`;
  },
};
