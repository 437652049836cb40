// The first picture: the same traffic at a fixed window and at GCRA.

import { box } from "./svg.js";
import { every } from "./traffic.js";
import { second } from "./world.js";

const period = 10 * second, quota = 10, burst = 2;

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

export const gate = {
  period, quota,
  ahead: 4 * second,    // how far the picture shows what comes
  first: 31.6 * second, // the picture begins just after an attack
  round: 20 * second,   // after this time the traffic is repeated
  // A request a second, and in between 20 of them around the edge of a window. It is the worst that
  // either limit can get.
  script: [...every(7, 1.2, 8.2), ...every(20, 9.05, 11.05), ...every(8, 11.05, 19.05)].map((t) => t * second),
  lanes: [{
    title: "Fixed window", note: "a count per window of 10 s", limit: { algorithm: "fixed-window", quota, period },
    place: (d, up) => up(quota - d.decisions[0].remaining), under: windows,
    why: `its window had counted ${quota}`,
  }, {
    title: "GCRA", note: `10 in 10 s, at most ${burst} at once`, limit: { algorithm: "gcra", quota, period, burst },
    place: (_, up) => up(0) - 24, under: rods,
    why: `all share ${burst} at once, then one a second`,
  }],
  /** @param {any[]} lanes */
  say([{ worst: a }, { worst: b }]) {
    return `Within ${period / second} s the fixed window let ${a.n} through, and GCRA ${b.n}: ${burst} at once (its burst), then ${quota - 1} more, one a second. With a burst of ${quota} it could let ${2 * quota - 1} through.`;
  },
};
