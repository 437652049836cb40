// A leaky bucket as a queue: requests wait, and leave one by one.

import { every } from "./traffic.js";
import { lit, say } from "./prose.js";
import { at, label, line, mark, plural, span, svg } from "./svg.js";
import { second } from "./world.js";

const queue = (tape) => tape.passed.filter((d) => d.t + d.wait > tape.now);

export const waiting = {
  id: "waiting", name: "a leaky bucket as a queue", gaugeName: "The queue now",
  length: 20, start: 5,
  limits: [{ algorithm: "leaky-bucket", quota: 1, period: 1, burst: 6 }], within: 5,
  requests: [...every(9, 2, 3.8), ...every(4, 8, 10), ...every(8, 12, 13.6)],
  rows: [{
    title: "goes ahead", height: 70, max: 1, ticks: [],
    place: (d) => d.allowed ? 0.15 : 0.85,
    x: (d, tape) => tape.x(d.t + d.wait),
    live: (tape, area) => tape.passed.map((d) => line(tape.x(d.t), 46, tape.x(d.t + d.wait), area.y(0.15) - 6, "way")),
  }],
  gauge(tape, w, h) {
    const here = queue(tape), y = h / 2, scale = (w - 44) / Math.max(1, tape.within);
    return [svg("path", { d: `M16 ${y - 28}v56M8 ${y - 28}h16M8 ${y + 28}h16`, class: "vessel" }), label(w / 2, 18, `${here.length} waiting`, "middle strong"),
      ...here.map((d) => at(24 + (d.t + d.wait - tape.now) * scale, y, mark("waits", 6))), label(4, y + 44, "server", "small soft")];
  },
  tells: {
    lesson(tape) {
      const [l] = tape.limits, longest = Math.max(0, ...tape.dots.filter((d) => d.allowed).map((d) => d.wait)), no = tape.dots.filter((d) => !d.allowed).length;
      return say`Requests leave the queue ${l.period / second} s apart, ${lit("however they arrive", ".way")}. Here the longest wait is ${span(longest)}, and ${plural(no, "request is", "requests are")} refused.`;
    },
  },
  say(tape) {
    const n = queue(tape), next = Math.min(...n.map((d) => d.t + d.wait));
    return n.length ? `${plural(n.length, "request waits", "requests wait")}. The next goes ahead in ${span(next - tape.now)}.` : "No request waits. The next request goes ahead at once.";
  },
  why: (d, tape) => d.allowed ? (d.wait ? "It keeps its place." : "No request was before it.") : `It would wait more than ${span(tape.within)}, or the queue is full.`,
};
