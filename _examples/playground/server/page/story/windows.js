// When a window begins: at multiples of the period (UTC), at midnight in a time zone, or with the
// first request of the key. The three limits decide the same requests, each by itself.

import { lit, say } from "./prose.js";
import { box, plural } from "./svg.js";

const hour = 3600e6, day = 24 * hour;
const two = (n) => String(n).padStart(2, "0");
const place = (us, zone = 0) => `day ${Math.floor((us + zone * hour) / day) + 1}, ${two(Math.floor((us + zone * hour) / hour) % 24)}:${two(Math.floor(us / 60e6) % 60)}`;

// starts returns when the windows of a limit begin.
function starts(tape, i) {
  const { limits, dots, end } = tape;
  if (i === 2) return [...new Set(dots.map((d) => d.t + d.decisions[2].resetAfter - day))].filter((t) => dots.some((d) => d.t === t));
  const first = i === 1 ? -limits[1].zone * hour : 0;
  return Array.from({ length: 5 }, (_, k) => first + (k - 1) * day).filter((t) => t > -day && t < end);
}

const row = (i, title) => ({
  title, height: 46, max: 8, ticks: [],
  place: (d, { limits }) => d.decisions[i].allowed ? limits[i].quota - d.decisions[i].remaining : limits[i].quota + 1.5,
  kind: (d) => d.decisions[i].allowed ? "passed" : "refused",
  live: (tape, area) => starts(tape, i).filter((t) => i < 2 || t <= tape.now).map((t) => {
    const a = tape.x(Math.max(0, t)), b = tape.x(Math.min(tape.end, t + day)), open = t <= tape.now && tape.now < t + day;
    return box(a + 1, area.y(tape.limits[i].quota) - 4, b - a - 2, area.bottom - area.y(tape.limits[i].quota) + 4, open ? "box open" : "box");
  }),
});

export const windows = {
  id: "windows", name: "windows of a day", unit: hour, speed: 4, step: 12, top: "requests (UTC)",
  length: 72, start: 40, apart: true,
  limits: [{ algorithm: "fixed-window", quota: 5, period: 86400 }, { algorithm: "calendar", quota: 5, period: 86400, zone: 9 }, { algorithm: "anchored-window", quota: 5, period: 86400 }],
  changed({ limits }) { for (const l of limits) l.quota = limits[0].quota; },
  requests: [7, 8, 9.5, 13, 14.5, 16, 17, 22, 23, 25, 26, 27.5, 28.5, 33, 37, 38.5, 39.5, 46, 47, 49, 52, 56, 61, 62],
  rows: [row(0, "fixed window: 0:00 UTC"), row(1, "calendar: midnight in the time zone"), row(2, "anchored window: the first request")],
  clock: (t) => place(t), tick: (t) => t % 24 ? "12:00" : `day ${t / 24 + 1}`,
  say(tape) {
    const left = tape.look().map((d) => d.remaining);
    return `Left now: ${left[0]} in the fixed window, ${left[1]} on the calendar, ${left[2]} in the anchored window.`;
  },
  tells: {
    lesson({ dots, limits: [{ quota }, { zone }] }) {
      const split = dots.filter((d) => new Set(d.decisions.map((x) => x.allowed)).size > 1).length;
      const away = zone === 0 ? "at the same time as" : `${plural(Math.abs(zone), "hour")} ${zone > 0 ? "before" : "after"}`;
      return say`The ${lit("day of the calendar", ".box")} begins ${away} the UTC day. The three windows disagree about ${split} of these ${dots.length} requests. Within 24 hours around an edge, the fixed window and the calendar can let ${2 * quota} through (two days' worth), the anchored window ${2 * quota - 1}.`;
    },
  },
  describe: (d) => `Request ${d.n + 1}, at ${place(d.t)} UTC: ${["fixed window", "calendar", "anchored window"].map((name, i) => `${name} ${d.decisions[i].allowed ? "passed" : "refused"}`).join(", ")}.`,
};
