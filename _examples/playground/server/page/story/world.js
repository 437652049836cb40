// The decisions of the library about requests, on the clock of a scene. Times are in µs.

import { library } from "../library.js";

export const second = 1e6;

// epoch is when every scene begins. Windows of any whole number of seconds up
// to 20 begin there as well.
export const epoch = 232_792_560 * 8 * second;

let weir;
export async function ready() { weir = await library(); }

// A Ledger has the states of some keys under the same limits. A limit is
// {algorithm, quota, period, burst}.
export class Ledger {
  constructor(limits, within = 0) {
    Object.assign(this, { limits, within, states: {} });
  }

  // take asks the library to decide a request of a key, and keeps the states after the decision.
  take(now, key = "", cost = 1) {
    const reply = ask(this.limits, this.states[key], this.within, now, key, cost);
    this.states = { ...this.states, [key]: reply.states };
    return reply;
  }
}

// look returns the Decisions for a request of cost 0. It changes nothing.
export const look = (limits, states, now, key = "") => ask(limits, states, 0, now, key, 0).decisions;

function ask(limits, states, within, now, key, cost) {
  const charges = limits.map((l) => ({ ...l, burst: l.burst ?? l.quota, key, cost }));
  const reply = JSON.parse(weir.decide(JSON.stringify({ now: epoch + now, within, charges, states })));
  if (reply.error) throw new Error(reply.error);
  return reply;
}

// replay decides a schedule from the beginning. A request is {t, cost}; a dot
// is a request with its decision.
export function replay(limits, within, requests) {
  const ledger = new Ledger(limits, within);
  return [...requests].sort((a, b) => a.t - b.t).map((request, n) => {
    const { allowed, wait, decisions } = ledger.take(request.t, "", request.cost);
    return { ...request, n, allowed, wait, decisions, states: ledger.states[""] };
  });
}
