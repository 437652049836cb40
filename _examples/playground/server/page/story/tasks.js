// What the reader can try in a scene, by its id. A task with settings is about the numbers of the
// scene; any other begins with an empty tape, at the instant from.

import { worst } from "./load.js";
import { bound } from "./gcra.js";
import { busiest, second } from "./world.js";

const seconds = (tape) => tape.limits[0].period / second;
const most = (tape) => busiest(tape.past, tape.limits[0].period).n;
const none = ({ dots }, f) => !dots.some((d) => !d.ends && f(d));
const anchored = ({ limits: [l] }) => l.algorithm === "anchored-window";
const goal = (tape) => 2 * tape.limits[0].quota - (anchored(tape) ? 1 : 0); // the worst case of a window
const before = ({ limits: [{ period }] }) => Math.max(0, period - 3 * second); // of the first edge
const soFar = (tape) => tape.trying ? ` So far: ${most(tape)}.` : "";
const refused = (d) => !d.allowed;

export const tasks = {
  edge: {
    from: (tape) => anchored(tape) ? 0 : before(tape), done: (tape) => most(tape) >= goal(tape),
    text: (tape) => `get ${goal(tape)} requests through within ${seconds(tape)} s: ${anchored(tape) ? "send one, and when its window is almost over, press “Send 10”, and again just after its end" : "press “Send 10” just before an edge, and again just after it"}.${soFar(tape)}`,
    won: (tape) => `${most(tape)} passed within ${seconds(tape)} s. The next scene gets the same requests.`,
  },
  log: {
    settings: true, done: (tape) => tape.past.some((d) => d.mine && !d.allowed),
    text: (tape) => `get more than ${tape.limits[0].quota} through within ${seconds(tape)} s: send some where you like.`,
    won: (tape) => `You can't get more than ${tape.limits[0].quota} through: that is the point.`,
  },
  weighted: {
    from: before, done: (tape) => most(tape) > tape.limits[0].quota,
    text: (tape) => `get more than ${tape.limits[0].quota} through within ${seconds(tape)} s: press “Send 10” late in a window, and again half a window later.${soFar(tape)}`,
    won: (tape) => `${most(tape)} passed within ${seconds(tape)} s, because the first came late in their window.`,
  },
  bucket: {
    settings: true, done: (tape) => none(tape, refused),
    text: () => "make the bucket so large that no request is refused.",
    won: (tape) => `no request is refused: a burst may now have ${tape.limits[0].burst}.`,
  },
  gcra: {
    settings: true, done: (tape) => bound(tape.limits[0]) === 11,
    text: () => "set the burst so that at most 11 can pass in any 10 s, as in the first picture.",
    won: () => "at most 11 can pass in any 10 s.",
  },
  waiting: {
    settings: true, done: (tape) => none(tape, refused),
    text: () => "let nobody be refused.",
    won: () => "nobody is refused, but the last of a burst waits longest.",
  },
  windows: {
    settings: true, done: ({ limits }) => limits[1].zone === 0,
    text: () => "set the time zone so that the calendar decides like the fixed window.",
    won: () => "both windows begin at midnight UTC.",
  },
  whose: {
    settings: true, done: (tape) => none(tape, (d) => d.who < 2 && !d.allowed) && !none(tape, (d) => d.who === 3 && !d.allowed),
    text: () => "let the office through, but not the whole script.",
    won: () => "a key that belongs to one client neither mixes clients nor can be multiplied.",
  },
  several: {
    settings: true, done: (tape) => none(tape, (d) => d.decisions[0].allowed && !d.decisions[1].allowed),
    text: () => "change the long limit until it alone refuses nothing.",
    won: () => "the short limit alone decides now, so slow guesses go on for ever.",
  },
  flights: {
    settings: true, done: (tape) => none(tape, refused),
    text: () => "raise the limit until no request is refused.",
    won: (tape) => `no more than ${tape.limits[0].quota} run at once.`,
  },
  retry: {
    settings: true, done: (tape) => tape.changed,
    text: () => "find a burst with which hammering is faster.",
    won: () => "You can't: that is the point. Before the time in Retry-After, every request is refused.",
  },
  load: {
    settings: true, done: (tape) => worst(tape) <= 0.5,
    text: () => "set the limit so that no request takes more than 0.5 s.",
    won: (tape) => `no request takes more than ${worst(tape).toFixed(2)} s.`,
  },
  chat: {
    done: ({ dots }) => dots.some((d) => d.user === "you" && !d.allowed),
    text: () => "write so fast that the limit refuses you.",
    won: () => "You were refused, and the others still write.",
  },
  replicas: {
    done: (site) => site.recent(200) >= 25,
    text: () => "get 25 requests through a limit of 10 within 10 s.",
    won: (site) => `${site.recent(200)} passed within 10 s: three separate counts are three limits.`,
  },
  outage: {
    done: ({ tried }) => tried?.has("memory") ?? false,
    text: () => "find the choice that does least harm while Redis is down.",
    won: () => "Memory does least harm, but a client whose requests all reach one replica gets only its share.",
  },
};
