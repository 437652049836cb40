// What a day is: from midnight UTC, from midnight in a time zone, from the first request of the key,
// or any 24 hours. The four limits decide the same requests, each by itself.

import { lit, say } from "./prose.js";
import { box, plural } from "./svg.js";

const hour = 3600e6, day = 24 * hour, names = ["fixed window", "calendar", "anchored window", "sliding log"];
const two = (n) => String(n).padStart(2, "0");
const place = (us) => `day ${Math.floor(us / day) + 1}, ${two(Math.floor(us / hour) % 24)}:${two(Math.floor(us / 60e6) % 60)}`;
const number = (n) => n.toLocaleString("en");
const batch = (quota) => Math.max(1, Math.round(quota / 5)); // how many requests a dot is
const cities = { "-8": "San Francisco in winter", "-5": "New York in winter", 0: "London in winter", 1: "Berlin in winter", 5.5: "India", 8: "Singapore", 9: "Tokyo" };
const utc = (zone) => `UTC${zone ? (zone < 0 ? "−" : "+") + Math.floor(Math.abs(zone)) + (zone % 1 ? `:${two(Math.abs(zone) % 1 * 60)}` : "") : ""}`;

// starts returns when the windows of a limit begin. A sliding log has the last 24 hours.
function starts({ limits, passed, end, now, dots }, i) {
  if (i === 3) return [now - day];
  if (i === 2) return [...new Set(passed.map((d) => d.t + d.decisions[2].resetAfter - day))].filter((t) => dots.some((d) => d.t === t));
  return Array.from({ length: 5 }, (_, k) => (k - 1) * day - (i ? limits[1].zone * hour : 0)).filter((t) => t > -day && t < end);
}

const row = (i, when) => ({
  title: `${names[i]}: ${when}`, height: 42, max: 1.6, ticks: [],
  place: (d, { limits: [{ quota }] }) => d.granted[i] ? (quota - d.decisions[i].remaining) / quota : 1.3,
  kind: (d) => d.granted[i] ? "passed" : "refused",
  live: (tape, area) => starts(tape, i).map((t) => {
    const a = tape.x(Math.max(0, t)), b = tape.x(Math.min(tape.end, t + day)), open = t <= tape.now && tape.now < t + day;
    return box(a + 1, area.y(1) - 4, b - a - 2, area.bottom - area.y(1) + 4, i === 3 ? "covered" : open ? "box open" : "box");
  }),
});

export const windows = {
  id: "windows", name: "windows of a day", unit: hour, speed: 4, step: 12, top: "requests (UTC)",
  length: 72, start: 40, apart: true,
  limits: ["fixed-window", "calendar", "anchored-window", "sliding-log"].map((algorithm) => ({ algorithm, quota: 5, period: 86400, zone: 9 })),
  changed({ limits, requests }) {
    for (const l of limits) l.quota = limits[0].quota;
    for (const r of requests) if (!r.mine) r.most = batch(limits[0].quota);
  },
  requests: [7, 8, 9.5, 13, 14.5, 16, 17, 22, 23, 25, 26, 27.5, 28.5, 33, 37, 38.5, 39.5, 46, 47, 49, 52, 56, 61, 62].map((t) => ({ t, most: 1 })),
  rows: [row(0, "midnight UTC"), row(1, "midnight of the customer"), row(2, "the first request"), row(3, "any 24 hours")],
  clock: (t) => place(t), tick: (t) => t % 24 ? "12:00" : `day ${t / 24 + 1}`,
  say: (tape) => `Left now: ${tape.look().map((d, i) => `${number(d.remaining)} in the ${names[i]}`).join(", ")}.`,
  tells: {
    zone: ({ limits: [, { zone }] }) => [utc(zone) + (cities[zone] ? `, as in ${cities[zone]}` : "")],
    lesson({ past, limits: [{ quota }] }) {
      const split = past.filter((d) => new Set(d.granted).size > 1).length, n = batch(quota);
      return say`So far the ${lit("four", ".box, .covered")} disagree about ${split} of ${n > 1 ? `${plural(past.length, "dot")}, each ${number(n)} requests` : plural(past.length, "request")}. With the first two, 24 hours around midnight can hold two days' worth, ${number(2 * quota)}. An anchored window can let ${number(2 * quota - 1)} through, a sliding log never more than ${number(quota)}.`;
    },
    contract: ({ limits: [{ quota }, { zone }] }) => say`Each account may make ${number(quota)} ${quota === 1 ? "call" : "calls"} per calendar day. The day begins at midnight in your time zone (${[utc(zone)]}, all year).`,
  },
  describe: (d) => `${d.most > 1 ? `${number(d.most)} requests` : `Request ${d.n + 1}`}, at ${place(d.t)} UTC: ${names.map((name, i) => `${name} ${d.most > 1 ? number(d.granted[i]) : d.granted[i] ? "passed" : "refused"}`).join(", ")}${d.most > 1 ? " passed" : ""}.`,
};
