// The ending: the reader's own requests under every algorithm, questions, and an answer
// with code to paste.

import { copy } from "../dom.js";
import { say, write } from "./prose.js";
import { AccessLog } from "./accesslog.js";
import { attack } from "./traffic.js";
import { plural, span } from "./svg.js";
import { second, weir } from "./world.js";

const units = { s: 1, min: 60, h: 3600, d: 86400 };
const presets = { // quota, periods, unit, burst, and answers
  github: [5000, 1, "h", "", { late: "refuse", exact: "no", back: "hourly" }],
  stripe: [100, 1, "s", 200, { late: "refuse", exact: "no", back: "gradually" }],
  openai: [10000, 1, "d", "", { late: "refuse", exact: "no", back: "daily" }],
  login: [5, 15, "min", "", { late: "refuse", exact: "yes", back: "gradually" }],
};

// length returns a long time as text: 90 s as 1.5 min.
export function length(us) {
  if (us <= 0) return "none";
  const [name, size] = Object.entries(units).findLast(([, size]) => us >= size * second) ?? ["ms", 1e-3];
  return us < second ? span(us) : `${+(us / second / size).toFixed(1)} ${name}`;
}

export class Which {
  constructor(traffic) {
    this.traffic = traffic; // name → function that returns times in µs, of a story whose period is 10 s
    this.root = document.getElementById("which");
    this.form = this.root.querySelector("form");
    this.form.addEventListener("input", () => this.compare());
    this.form.addEventListener("submit", (e) => e.preventDefault());
    for (const b of this.root.querySelectorAll("[data-preset]")) b.onclick = () => this.preset(b.dataset.preset);
    for (const b of this.root.querySelectorAll("[data-copy]")) b.onclick = () => copy(b, this.root.querySelector("." + b.dataset.copy).textContent);
    this.compare();
    this.log = new AccessLog(() => this.chosen);
  }

  field(name) { return this.form.elements[name]; }

  preset(name) {
    const [quota, periods, unit, burst, answers] = presets[name];
    for (const [field, value] of Object.entries({ quota, periods, unit, burst, ...answers })) this.field(field).value = value;
    this.compare();
  }

  compare() {
    const wrong = [...this.form.elements].find((e) => e.willValidate && !e.checkValidity()), error = this.root.querySelector(".error");
    const value = (name) => this.field(name).value, quota = Number(value("quota")), period = Number(value("periods")) * units[value("unit")];
    const late = period > 30 * units.d;
    error.textContent = wrong ? `${wrong.getAttribute("aria-label")}: a whole number from ${wrong.min} to ${wrong.max}.` : late ? "The period: at most 30 days." : "";
    this.chosen = undefined;
    if (wrong || late) return;
    const times = this.traffic[value("traffic")]().map((t) => Math.round(t * period / 10)).sort((a, b) => a - b), each = Math.max(1, Math.round(quota / 10));
    const trial = { quota, period, burst: Number(value("burst")) || 0, times, each, late: value("late"), exact: value("exact") === "yes", back: value("back") };
    const reply = JSON.parse(weir.compare(JSON.stringify(trial)));
    if (reply.error) {
      error.textContent = reply.error;
      return;
    }
    this.outcome = reply;
    const { verdicts, advice } = reply, best = verdicts.find((v) => v.algorithm === advice.algorithm), name = `${value("periods")} ${value("unit")}`;
    const cells = (v) => v.error ? [["th", v.title], ["td", v.error, 5]] :
      [["th", v.title], ["td", v.admitted], ["td", v.refused], ["td", v.most], ["td", length(v.wait)], ["td", v.bytes]];
    this.root.querySelector("tbody").replaceChildren(...verdicts.map((v) => {
      const tr = document.createElement("tr");
      tr.classList.toggle("best", v === best);
      tr.append(...cells(v).map(([tag, text, span]) => {
        const e = document.createElement(tag);
        e.textContent = typeof text === "number" ? text.toLocaleString("en") : text;
        if (tag === "th") e.scope = "row";
        if (span) e.colSpan = span;
        return e;
      }));
      tr.children[3]?.classList.toggle("over", !v.error && v.most > quota);
      return tr;
    }));
    write(this.root.querySelector(".traffic"), times.length === 0 ? ["You have sent no requests yet. Click the first picture, or choose other traffic."] :
      say`${plural(times.length, "moment")} with ${plural(each, "request")} each, stretched so that 10 s of the story are ${name}: ${times.length * each} requests in all.`);
    this.root.querySelector(".most").textContent = `most in any ${name}`;
    write(this.root.querySelector(".advice"), say`${best.title}${advice.burst ? ` with a burst of ${advice.burst}` : ""}. ${advice.why}`);
    this.chosen = { algorithm: best.algorithm, title: best.title + (trial.late === "wait" ? ", without its queue," : ""), query: `quota=${quota}&period=${period}&burst=${advice.burst || trial.burst}` };
    for (const name of ["go", "yaml", "test"]) this.root.querySelector("." + name).textContent = advice[name];
  }
}

export const attacked = () => attack.map((t) => t * second);
