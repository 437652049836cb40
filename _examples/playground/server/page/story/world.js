// The decisions of the library about requests, on the clock of a scene. Times are in µs.

import { library } from "../library.js";

export const second = 1e6;

// epoch is when every scene begins: a midnight UTC, at which windows of any whole number of
// seconds up to 16 begin as well.
export const epoch = 86_486_400 * 21 * second;

export let weir;
export async function ready() { weir = await library(); }

// A Ledger has the states of some keys under the same limits. A limit is
// {algorithm, quota, period, burst, zone}.
export class Ledger {
  limits; within; states;

  constructor(limits, within = 0) {
    Object.assign(this, { limits, within, states: {} });
  }

  // take asks the library to decide a request of a key, and keeps the states after the decision. If
  // most is set, it decides so many requests at once, and grants as many of them as fit.
  take(now, key = "", cost = 1, most = 0) {
    const reply = ask(this.limits, this.states[key], this.within, now, key, cost, most);
    this.states = { ...this.states, [key]: reply.states };
    return reply;
  }
}

// look returns the Decisions for a request of cost 0. It changes nothing. Each limit is asked by
// itself.
export const look = (limits, states, now, key = "") => limits.map((l, i) => ask([l], states && [states[i]], 0, now, key, 0).decisions[0]);

function ask(limits, states, within, now, key, cost, most = 0) {
  const charges = limits.map((l) => ({ zone: 0, ...l, burst: l.burst ?? l.quota, key, cost }));
  const reply = weir.decide({ now: epoch + now, within, most, charges, states: states ?? [] });
  if (reply.error) throw new Error(reply.error);
  return reply;
}

// replay decides a schedule from the beginning. A request is {t, cost, most, user, lasts}; a dot is a
// request with its decision. If apart is set, each limit decides by itself, as if it were the
// only one. A request that lasts gives its unit back at its end, which is a dot that ends it.
export function replay(limits, within, requests, apart) {
  const ledgers = (apart ? limits.map((l) => [l]) : [limits]).map((l) => new Ledger(l, within));
  const due = [...requests].sort((a, b) => a.t - b.t), dots = [];
  for (let n = 0; due.length;) {
    const request = due.shift(), { t, user = "", cost, most } = request;
    const replies = ledgers.map((l) => l.take(t, user, cost, most)), [{ allowed, wait }] = replies;
    const dot = { ...request, user, n, allowed, wait, granted: replies.map((r) => r.granted), decisions: replies.flatMap((r) => r.decisions), states: ledgers.flatMap((l) => l.states[user]) };
    dots.push(dot);
    if (!request.ends) n++;
    if (allowed && request.lasts) {
      const end = { t: t + request.lasts, cost: -cost, user, ends: true }, i = due.findIndex((r) => r.t > end.t);
      due.splice(i < 0 ? due.length : i, 0, end);
    }
  }
  return dots;
}

// busiest returns the fullest span of a period among dots that passed: how many it holds, and
// from when to when.
export function busiest(dots, period, passes = (d) => d.allowed) {
  const times = dots.filter((d) => d.cost > 0 && passes(d)).map((d) => d.t + d.wait).sort((a, b) => a - b);
  let best = { n: 0, from: 0, to: 0 };
  for (let i = 0, j = 0; j < times.length; j++) {
    while (times[i] <= times[j] - period) i++;
    if (j - i + 1 > best.n) best = { n: j - i + 1, from: times[i], to: times[j] };
  }
  return best;
}
