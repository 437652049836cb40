// Links to a scene as the reader has set it, such as edge.html?quota=6&at=13&requests=8.8,8.9, a page that
// has the title and a picture of the scene and goes on to #edge?quota=6&at=13&requests=8.8,8.9.

const round = (t, tape) => +(t / tape.unit).toFixed(2);

// shared returns a link to a scene, and shows where it leads to in the address of the page.
export function shared(id, query) {
  history.replaceState(null, "", `#${id}?${query}`);
  return new URL(`${id}.html?${query}`, location.href).href;
}

// link returns a link to a tape.
export function link(tape) {
  const query = new URLSearchParams();
  for (const input of tape.root.querySelectorAll("[data-number]")) query.set(input.dataset.number, tape.value(input.dataset.number));
  const choice = tape.find("[data-choice]");
  if (choice && tape.choice !== choice.options[0].value) query.set(choice.dataset.choice, tape.choice);
  query.set("at", String(round(tape.now, tape)));
  if (tape.requests.some((r) => r.mine) || tape.trying) query.set("requests", tape.requests.filter((r) => r.cost > 0).map((r) => round(r.t, tape)).join(","));
  return shared(tape.scene.id, query.toString().replaceAll("%2C", ","));
}

// linked returns what the address of the page says about a scene, or undefined. Numbers that the
// scene does not allow are left out.
export function linked(id, unit) {
  const [name, query] = location.hash.slice(1).split("?");
  if (name !== id || !query) return undefined;
  const values = new URLSearchParams(query), numbers = {};
  for (const input of document.querySelectorAll(`#${id} [data-number]`)) {
    const value = Number(values.get(input.dataset.number));
    if (value % Number(input.step || 1) === 0 && value >= Number(input.min) && value <= Number(input.max)) numbers[input.dataset.number] = value;
  }
  const select = document.querySelector(`#${id} [data-choice]`), option = [...select?.options ?? []].find((o) => o.value === values.get(select.dataset.choice));
  const list = values.get("requests"), at = Number(values.get("at"));
  const times = list?.split(",").map((t) => Math.round(Number(t) * unit)).filter((t) => t >= 0 && t <= 60 * unit).slice(0, 160);
  return { numbers, choice: option?.value, now: (at >= 0 ? at : 0) * unit, times };
}
