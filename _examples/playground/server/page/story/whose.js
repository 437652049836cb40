// Whose quota: the key decides who shares a limit.

import { every } from "./traffic.js";
import { say } from "./prose.js";
import { label, plural } from "./svg.js";
import { weir } from "./world.js";

// The fourth client takes another address of its /64 for each request.
const people = [
  { name: "Ana, in an office", addr: () => "203.0.113.7", token: "ana", times: every(8, 1, 17) },
  { name: "Ben, same office", addr: () => "203.0.113.7", token: "ben", times: every(9, 2.1, 17.4) },
  { name: "Cleo, at home", addr: () => "198.51.100.20", token: "cleo", times: every(7, 1.5, 17.6) },
  { name: "a script, IPv6", addr: (n) => `2001:db8:1:2::${n + 1}`, token: "trial", times: every(30, 0.4, 18) },
];

const counts = (dots, i) => [dots.filter((d) => d.who === i && d.allowed).length, dots.filter((d) => d.who === i).length];

export const whose = {
  id: "whose", name: "four clients", fixed: true, left: 128,
  length: 20, start: 18,
  limits: [{ algorithm: "gcra", quota: 5, period: 10, burst: 3 }],
  requests: ({ choice }) => people.flatMap(({ addr, token, times }, who) => times.map((t, n) => ({ t, who, user: weir.key(choice, addr(n), token) }))),
  rows: people.map((_, i) => ({
    height: 26, max: 1, ticks: [],
    place: (d) => d.who === i ? 0.5 : undefined,
    live: (tape, area) => [label(0, area.y(0.5) + 4, people[i].name, "strong")],
  })),
  say(tape) {
    return people.map(({ name }, i) => `${name.split(",")[0]}: ${counts(tape.past, i).join(" of ")}`).join("; ") + " passed.";
  },
  tells: {
    lesson({ dots }) {
      const used = new Set(dots.map((d) => d.user)).size, [ana, anas] = counts(dots, 0), [ben, bens] = counts(dots, 1), [bot, bots] = counts(dots, 3);
      const office = ana + ben < anas + bens ? say` The office shares a quota: Ana sends as often as a request becomes free, so Ben gets only ${ben} of ${bens} through.` : say` Ana and Ben each have a quota, and all ${anas + bens} requests pass.`;
      const script = bot === bots ? say` The script gets all ${bots} through, because each of its addresses is a new key.` : say` The script gets ${bot} of ${bots} through.`;
      return [...say`Here there are ${plural(used, "key")}.`, ...office, ...script];
    },
  },
  why: (d) => `Its key is “${d.user}”.`,
};
