// Replays an access log of the reader through the limit of the ending.

import { make } from "../dom.js";
import { write, say } from "./prose.js";
import { lab } from "../library.js";

const most = 32 << 20; // bytes
const pause = () => new Promise((next) => setTimeout(next)); // meanwhile the browser paints

export class AccessLog {
  ready = false; // for tests: the program that reads logs is there

  // limit is a function that returns the algorithm, its title and the limit as a query, or nothing if
  // the fields of the ending are wrong.
  constructor(limit) {
    this.limit = limit;
    this.root = document.getElementById("log-form");
    this.runs = 0;
    const area = this.root.querySelector("textarea"), file = this.root.querySelector("[type=file]");
    this.root.addEventListener("submit", (e) => e.preventDefault());
    this.root.closest("details").addEventListener("toggle", () => lab().then(() => { this.ready = true; }, () => {})); // replay says why
    this.root.querySelector(".replay").onclick = () => this.replay(new Blob([area.value]));
    file.onchange = () => file.files[0] && this.replay(file.files[0]);
  }

  say(...parts) { write(this.root.querySelector(".said"), parts); }

  // replay reads a Blob in parts. If the reader begins another log meanwhile, it stops.
  async replay(blob) {
    const run = ++this.runs, limit = this.limit(), table = this.root.querySelector("table"), notes = this.root.querySelector("ul");
    table.hidden = true;
    notes.replaceChildren();
    if (!limit) return this.say("The limit above is not complete.");
    if (blob.size === 0) return this.say("There are no lines yet.");
    let data, cut = blob.size > most;
    try {
      data = new Uint8Array(await blob.slice(0, most).arrayBuffer());
    } catch (e) {
      return this.say(`The file cannot be read. ${e.message}`);
    }
    if (run !== this.runs) return;
    if (cut && !(data[0] === 0x1f && data[1] === 0x8b)) data = data.subarray(0, data.lastIndexOf(10) + 1); // without the part of a line
    this.say("The part of the library that reads logs is being loaded.");
    let weir;
    try {
      weir = await lab();
    } catch (e) {
      return this.say(`The part of the library that reads logs could not be loaded. ${e.message}`);
    }
    if (run !== this.runs) return;
    weir.log(limit.algorithm, limit.query, data, cut);
    for (let more = true, lines; more;) {
      [lines, more] = weir.logStep(1000);
      if (!more) break;
      this.say(`${lines.toLocaleString("en")} lines …`);
      await pause();
      if (run !== this.runs) return;
    }
    this.show(JSON.parse(weir.logReport()), limit.title);
  }

  show(r, title) {
    this.reply = r; // for tests
    if (r.error && !r.requests) return this.say(`Nothing was replayed: ${r.error}.`);
    const share = (100 * r.refused / r.requests).toFixed(1);
    const whole = r.cut ? " The log has more; only this part was read." : "";
    if (r.refused) write(this.root.querySelector(".said"), say`${title} would have refused ${r.refused} of ${r.requests} requests (${share} %) from ${r.from} to ${r.to}. The first refusal is at ${r.first}, the last at ${r.last}.${whole}`);
    else write(this.root.querySelector(".said"), say`${title} would have refused none of ${r.requests} requests from ${r.from} to ${r.to}.${whole}`);
    this.root.querySelector("table").hidden = !r.refused;
    this.root.querySelector("tbody").replaceChildren(...(r.top ?? []).map(({ key, refused }) => {
      const tr = make("tr");
      tr.append(make("td", "", key), make("td", "", refused.toLocaleString("en")));
      return tr;
    }));
    this.root.querySelector("ul").replaceChildren(...[r.error ?? [], r.notes ?? []].flat().map((note) => make("li", "", note[0].toUpperCase() + note.slice(1) + ".")));
  }
}
