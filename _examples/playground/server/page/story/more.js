// Requests that wait, and requests that obey two limits at once.

import { every } from "./edge.js";
import { lit, say } from "./prose.js";
import { at, box, label, line, mark, plural, span, svg } from "./svg.js";
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

const row = (i, title, max) => ({
  title, height: 84, max, limit: i ? `${i}.quota` : "quota",
  place: (d, { limits }) => d.decisions[i].allowed ? limits[i].quota - d.decisions[i].remaining : limits[i].quota + max * 0.1,
  kind: (d) => d.allowed ? "passed" : d.decisions[i].allowed ? "spared" : "refused",
  live(tape, area) {
    const { period } = tape.limits[i], a = tape.x(Math.max(0, tape.now - period)), b = tape.x(tape.now);
    return [box(a, area.top, b - a, area.bottom - area.top, "covered")];
  },
});

export const several = {
  id: "several", name: "two limits at once",
  length: 30, start: 13.5,
  limits: [{ algorithm: "sliding-log", quota: 3, period: 2 }, { algorithm: "sliding-log", quota: 10, period: 20 }],
  requests: [1, 4, 8, 12, 16, 22].flatMap((t) => every(4, t, t + 1.6)),
  rows: [row(0, "the short limit", 6), row(1, "the long limit", 14)],
  tells: {
    lesson({ dots, limits: [a, b] }) {
      const count = (f) => dots.filter((d) => !d.allowed && f(d.decisions)).length;
      const short = count(([x, y]) => !x.allowed && y.allowed), long = count(([x, y]) => x.allowed && !y.allowed), both = count(([x, y]) => !x.allowed && !y.allowed);
      return say`Here the short limit alone refuses ${short}, the long one alone ${long}, and both refuse ${both} of ${dots.length} requests. Nobody gets more than ${a.quota} guesses in ${a.period / second} s, nor more than ${b.quota} in ${b.period / second} s.`;
    },
  },
  say(tape) {
    const [a, b] = tape.look(), [p, q] = tape.limits;
    return `The short limit has counted ${p.quota - a.remaining} of ${p.quota}, and the long one ${q.quota - b.remaining} of ${q.quota}.`;
  },
  why(d) {
    if (d.allowed) return "Both limits had room.";
    const [a, b] = d.decisions.map((x) => x.allowed);
    return a ? "The long limit is used up, so the short one does not count it either." : b ? "The short limit is used up, so the long one does not count it either." : "Both limits are used up.";
  },
};
