// What a limit does for a server: the requests that it admits, and how long they take. The server
// is simulated: it serves one request after the other. The library decides which of them arrive.

import { every } from "./edge.js";
import { lit, say } from "./prose.js";
import { path, plural } from "./svg.js";
import { second } from "./world.js";

const rate = 4;               // requests that the server can serve in a second
const time = second / rate;

// latencies returns when each request arrives and how long it takes, if one is served after the other.
function latencies(dots) {
  let free = 0;
  return dots.map((d) => {
    free = Math.max(free, d.t) + time;
    return [d.t, free - d.t];
  });
}

const curve = (tape, area, dots, kind) => {
  const points = [[0, time]];
  for (const [t, took] of latencies(dots)) if (t <= tape.now) points.push([t, took]);
  return path(points.map(([t, v]) => [tape.x(t), area.y(Math.min(area.max, v / second))]), kind);
};
const worst = (dots) => Math.max(0, ...latencies(dots).map(([, took]) => took)) / second;

export const load = {
  id: "load", name: "a server under load",
  length: 30, start: 22, top: "requests",
  limits: [{ algorithm: "gcra", quota: 4, period: 1, burst: 4 }],
  requests: [...every(10, 0.5, 6), ...every(72, 6, 14), ...every(26, 14, 28)],
  rows: [{
    title: "time that a request takes, in s", height: 150, max: 12, dense: true,
    place: (d, tape) => d.allowed ? Math.min(12, (latencies(tape.dots.filter((e) => e.allowed)).find(([t]) => t === d.t)?.[1] ?? 0) / second) : 11.4,
    live: (tape, area) => [curve(tape, area, tape.dots, "real"), curve(tape, area, tape.dots.filter((d) => d.allowed), "estimate")],
  }],
  say(tape) {
    const no = tape.past.filter((d) => !d.allowed).length, last = (dots) => (latencies(dots).findLast(([t]) => t <= tape.now)?.[1] ?? time) / second;
    return `A request takes ${last(tape.dots.filter((d) => d.allowed)).toFixed(1)} s now, and would take ${last(tape.dots).toFixed(1)} s without the limit. So far ${plural(no, "request was", "requests were")} refused.`;
  },
  tells: {
    lesson({ dots }) {
      const with_ = dots.filter((d) => d.allowed);
      return say`Without a limit (${lit("dashes", ".real")}) all ${dots.length} requests are served, each late: up to ${worst(dots).toFixed(1)} s, and still late after the flood has ended. With it (${lit("line", ".estimate")}) ${with_.length} are served, within ${worst(with_).toFixed(1)} s, and ${dots.length - with_.length} get a 429 at once.`;
    },
  },
  why: (d) => d.allowed ? "It is served." : "The server does not see it.",
};
