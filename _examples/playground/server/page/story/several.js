// Two limits at once: a request must obey both.

import { every } from "./traffic.js";
import { say } from "./prose.js";
import { box } from "./svg.js";

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
    lesson({ dots }) {
      const count = (f) => dots.filter((d) => !d.allowed && f(d.decisions)).length;
      const short = count(([x, y]) => !x.allowed && y.allowed), long = count(([x, y]) => x.allowed && !y.allowed), both = count(([x, y]) => !x.allowed && !y.allowed);
      return say`Here the short limit alone refuses ${short}, the long one alone ${long}, and both refuse ${both} of ${dots.length} requests.`;
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
