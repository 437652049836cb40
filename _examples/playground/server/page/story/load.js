// What a limit does for a server: the requests that it admits, and how long they take. The server
// is simulated: it serves one request after the other. The library decides which of them arrive.

import { every } from "./traffic.js";
import { lit, say } from "./prose.js";
import { path, plural } from "./svg.js";
import { second } from "./world.js";

const rate = 4;               // requests that the server can serve in a second
const time = second / rate;

// latencies returns how long each request takes, if all of them are served one after the other, and
// if only those are that the limit admits: both maps from dots to µs.
const known = new WeakMap();
function latencies({ dots }) {
  if (!known.has(dots)) known.set(dots, [dots, dots.filter((d) => d.allowed)].map((served) => {
    let free = 0;
    return new Map(served.map((d) => {
      free = Math.max(free, d.t) + time;
      return [d, free - d.t];
    }));
  }));
  return known.get(dots);
}

const curve = (tape, area, took, kind) => {
  const points = [[0, time]];
  for (const [d, us] of took) if (d.t <= tape.now) points.push([d.t, us]);
  return path(points.map(([t, v]) => [tape.x(t), area.y(Math.min(area.max, v / second))]), kind);
};
const longest = (took) => Math.max(0, ...took.values()) / second;
export const worst = (tape) => longest(latencies(tape)[1]);

export const load = {
  id: "load", name: "a server under load",
  length: 30, start: 22, top: "requests",
  limits: [{ algorithm: "gcra", quota: 4, period: 1, burst: 4 }],
  requests: [...every(10, 0.5, 6), ...every(72, 6, 14), ...every(26, 14, 28)],
  rows: [{
    title: "time that a request takes, in s", height: 150, max: 12, dense: true, still: true,
    place: (d, tape) => d.allowed ? Math.min(12, latencies(tape)[1].get(d) / second) : 11.4,
    live: (tape, area) => latencies(tape).map((took, i) => curve(tape, area, took, i ? "estimate" : "real")),
  }],
  say(tape) {
    const no = tape.past.filter((d) => !d.allowed).length, [all, admitted] = latencies(tape).map((took) => (([...took].findLast(([d]) => d.t <= tape.now)?.[1] ?? time) / second).toFixed(1));
    return `A request takes ${admitted} s now, and would take ${all} s without the limit. So far ${plural(no, "request was", "requests were")} refused.`;
  },
  tells: {
    lesson(tape) {
      const [all, admitted] = latencies(tape), no = all.size - admitted.size;
      return say`Without a limit (${lit("dashes", ".real")}) all ${all.size} requests are served, each late: up to ${longest(all).toFixed(1)} s, and still late after the flood has ended. With it (${lit("line", ".estimate")}) ${admitted.size} are served, within ${longest(admitted).toFixed(1)} s, and ${no} get a 429 at once.`;
    },
  },
  why: (d) => d.allowed ? "It is served." : "The server does not see it.",
};
