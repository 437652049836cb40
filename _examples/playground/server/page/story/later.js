// Loads more of the library for the sections that need it, when the reader comes near to one of them.

import { more } from "../library.js";

// later returns a function that loads it at once. The function begin gets the library.
export function later(ids, begin) {
  const sections = ids.map((id) => document.getElementById(id)), notes = sections.map((section) => {
    const note = document.createElement("p");
    note.className = "stays";
    note.textContent = "This scene needs another part of the library, about 1 MB. Until it is loaded, these are the numbers at the start.";
    section.querySelector(".words").append(note);
    return note;
  });
  const offer = (offered) => { for (const section of sections) for (const e of section.querySelectorAll("button, input, select, textarea")) e.disabled = !offered; };

  let loading;
  const load = () => loading ??= more().then((weir) => {
    for (const note of notes) note.remove();
    offer(true);
    begin(weir);
  }, (e) => {
    for (const note of notes) note.textContent = `These are the numbers at the start: another part of the library could not be loaded, so nothing here can be changed. ${e.message}`;
  });
  const near = new IntersectionObserver((entries) => {
    if (!entries.some((e) => e.isIntersecting)) return;
    near.disconnect();
    load();
  }, { rootMargin: "200% 0px" });
  offer(false);
  for (const section of sections) near.observe(section);
  return load;
}
