// The form of the ending: what it asks the library, and as a link.

import { shared } from "./link.js";

const presets = {
  github: { quota: 5000, periods: 1, unit: "h", back: "hourly", whose: "key" },
  stripe: { quota: 100, periods: 1, unit: "s", whose: "key" },
  openai: { quota: 10000, periods: 1, unit: "d", back: "daily", whose: "key" },
  login: { quota: 5, periods: 15, unit: "min", exact: "yes", whose: "ip" },
};

// preset returns the answers of a preset, by name. On which servers the code runs is left as it is.
export const preset = (name) => ({ burst: "", late: "refuse", exact: "no", back: "gradually", ...presets[name] });

const units = { s: 1, min: 60, h: 3600, d: 86400 };

/** @returns {Record<string, any>} */
const answers = (form) => Object.fromEntries(new FormData(form));

// asked returns the Trial of a form, or what is wrong with its numbers. It shows the questions that
// the other answers need.
export function asked(form, traffic) {
  for (const e of form.querySelectorAll("[data-when]")) {
    const [name, value] = e.dataset.when.split("=");
    e.hidden = form.elements[name].value !== value;
  }
  const wrong = [...form.elements].find((e) => e.willValidate && !e.checkValidity()), a = answers(form);
  const quota = Number(a.quota), period = Number(a.periods) * units[a.unit];
  if (wrong) return { error: `${wrong.getAttribute("aria-label")}: a whole number from ${wrong.min} to ${wrong.max}.` };
  if (period > 30 * units.d) return { error: "The period: at most 30 days." };
  const times = traffic[a.traffic]().map((t) => Math.round(t * period / 10)).sort((x, y) => x - y);
  return { trial: { ...a, traffic: a.traffic, quota, period, burst: Number(a.burst), exact: a.exact === "yes", proxy: a.proxy === "yes", several: a.servers === "several", times, each: Math.max(1, Math.round(quota / 10)), name: `${a.periods} ${a.unit}` } };
}

// link returns a link to the ending with the answers of its form.
export const link = (form) => shared("which", new URLSearchParams(/** @type {any} */ (new FormData(form))));

// restore takes answers from the address of the page. Answers that the form does not allow are left
// out.
export function restore(form) {
  const [id, query] = location.hash.slice(1).split("?");
  if (id !== "which" || !query) return;
  for (const [name, value] of new URLSearchParams(query)) {
    const e = form.elements.namedItem(name), was = e?.value;
    if (!e || e.length && ![...e].some((choice) => choice.value === value)) continue;
    e.value = value;
    if (!e.length && !e.checkValidity()) e.value = was;
  }
}
