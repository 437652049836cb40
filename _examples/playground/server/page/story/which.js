// The ending: a limit, answers, and what the library makes of them.

import { copy } from "../dom.js";
import { say, write } from "./prose.js";
import { AccessLog } from "./accesslog.js";
import { attack } from "./traffic.js";
import { asked, link, preset, restore } from "./answers.js";
import { asText, draw } from "./verdicts.js";
import { second } from "./world.js";

const sent = { attack: ["bursts around an edge, as in scene 1"], yours: ["those of scene 1, as you have left it"], clicks: ["your clicks at the top"] };

export const attacked = () => attack.map((t) => t * second);

export class Which {
  weir; traffic; trial; outcome; chosen;

  constructor(weir, traffic) {
    Object.assign(this, { weir, traffic }); // traffic: name → function that returns times in µs, of a story whose period is 10 s
    this.root = document.getElementById("which");
    this.form = this.find("form");
    this.form.addEventListener("input", () => this.compare());
    this.form.addEventListener("submit", (e) => e.preventDefault());
    for (const b of this.root.querySelectorAll("[data-preset]")) b.onclick = () => this.answer(preset(b.dataset.preset));
    for (const b of this.root.querySelectorAll("[data-copy]")) b.onclick = () => copy(b, this.find("." + b.dataset.copy).textContent);
    this.find(".share").onclick = () => copy(this.find(".share"), link(this.form));
    this.find(".text").onclick = () => copy(this.find(".text"), asText(this.root, this.trial, this.outcome, link(this.form)));
    this.restore();
    this.log = new AccessLog(() => this.chosen);
  }

  find(selector) { return this.root.querySelector(selector); }

  // restore takes the answers from the address of the page, if it has any.
  restore() {
    restore(this.form);
    this.compare();
  }

  answer(values) {
    for (const [name, value] of Object.entries(values)) this.form.elements[name].value = value;
    this.compare();
  }

  compare() {
    const { trial, error } = asked(this.form, this.traffic), reply = error ? { error } : JSON.parse(this.weir.compare(JSON.stringify(trial)));
    this.find(".error").textContent = reply.error ?? "";
    this.chosen = undefined;
    for (const e of this.root.querySelectorAll(".text, [data-copy]")) e.disabled = Boolean(reply.error); // what is shown answers other numbers
    if (reply.error) return;
    const { advice } = reply, all = trial.times.length * trial.each;
    Object.assign(this, { trial, outcome: reply });
    draw(this.root, trial, reply);
    write(this.find(".traffic"), all === 0 ? ["You have sent no requests yet. Send some in the first picture, or choose other requests."] :
      say`All get the same ${all.toLocaleString("en")} requests: ${sent[trial.traffic]}${trial.each > 1 ? `, with ${trial.each.toLocaleString("en")} for each dot there` : ""}${trial.period === 10 ? "" : `, and ${trial.name} for 10 s there`}.`);
    this.chosen = { algorithm: advice.algorithm, title: advice.title + (advice.algorithm === "leaky-bucket" ? ", without its queue," : ""), query: `quota=${trial.quota}&period=${trial.period}&burst=${advice.burst || trial.burst}` };
  }
}
