// A chat with a spammer: its limit, and who says what. After each round the others talk about the
// next goal.

import { second } from "./world.js";

const n = (text, later) => (round) => round ? later.replace("#", String(round + 1)) : text;
/** @type {[number, string, (round: number) => string][]} */
const talk = [
  [0.1, "anna", n("hi all", "goal!")],
  [1.3, "ben", n("hi anna, did you see that goal?", "#:1, what a game")],
  [2.2, "anna", n("who is that?", "is the advert still there?")],
  [3.3, "anna", n("can it be muted?", "I hardly see it")],
  [7.2, "ben", n("it mutes itself", "me neither")],
  [11.3, "anna", n("so it does", "who plays next?")],
  [15.2, "ben", n("back to the match", "no idea, back to the match")],
];
for (let i = 0; i < 28; i++) talk.push([0.4 + i * 0.7, "spammer", () => "BUY NOW"]);

export const chat = {
  limits: [{ algorithm: "token-bucket", quota: 1, period: 4 * second, burst: 3 }],
  round: 20 * second,
  script: talk.map(([t, user, text]) => ({ t: t * second, user, text })).sort((a, b) => a.t - b.t),
};
