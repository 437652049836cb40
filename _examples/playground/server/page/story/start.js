// Says what the reader waits for, or why nothing can be changed: the controls are disabled until the
// library has been loaded. This script is no module, so that it also runs in an old browser, and in a
// page that was opened from a file.
(function () {
  const said = document.getElementById("loading") || document.getElementById("problem");
  const decides = document.getElementById("decides"), runs = decides && decides.textContent;
  let over = false, there = false;

  const offer = (/** @type {boolean} */ offered) => {
    document.querySelectorAll("main button, main input, main select, main textarea").forEach((/** @type {any} */ e) => { e.disabled = !offered; });
  };

  function say(/** @type {string} */ text) {
    said.hidden = false;
    said.textContent = text;
  }

  // fail says why the library is not there, and, in each section, that its numbers stay.
  function fail(/** @type {string} */ why) {
    if (over) return;
    over = true;
    offer(false);
    document.body.classList.add("lost");
    say("The library could not be loaded, so " + (said.id === "loading" ? "what you see is what it decided when this page was made, and nothing here can be changed. " : "this page has nothing to show. ") + why);
    if (decides) decides.textContent = "decided every request that you see, when this page was made";
    document.querySelectorAll("main > section > .words").forEach((words) => {
      const p = document.createElement("p");
      p.className = "stays";
      p.textContent = "These are the numbers at the start: the library could not be loaded, so nothing here can be changed.";
      words.append(p);
    });
  }

  // arrive takes back what fail has said: a page can work without a script that an extension or a
  // proxy has put into it.
  function arrive() {
    over = there = true;
    offer(true);
    if (!document.body.classList.contains("lost")) return;
    document.body.classList.remove("lost");
    said.hidden = true;
    if (decides) decides.textContent = runs;
    document.querySelectorAll(".stays").forEach((p) => { p.remove(); });
  }

  // The event has the reason as its detail, or none if the library has been loaded.
  addEventListener("library", (/** @type {any} */ e) => {
    if (e.detail == null) return arrive();
    if (!there) return fail(e.detail);
    const p = document.getElementById("problem");
    p.hidden = false;
    p.textContent = "A part of this page does not work. Reload the page. " + e.detail;
  });
  // A script that does not arrive, or that the browser does not understand.
  addEventListener("error", (e) => {
    const { tagName, type } = /** @type {any} */ (e.target);
    if (tagName === "SCRIPT" && type === "module") fail("A script of the page did not arrive. Reload the page, or allow its scripts.");
    else if (e.error instanceof SyntaxError) fail("This browser is too old for it.");
  }, true);

  offer(false);
  if (location.protocol === "file:") fail("Opened from a file, a browser does not run it. Serve the directory, for example with python3 -m http.server.");
  else if (!("noModule" in HTMLScriptElement.prototype)) fail("This browser is too old for it.");
  else if (said.id === "loading") say("The library, about 1 MB, is being loaded. Until it is there, the first picture shows what it decided when this page was made, and the others stand still.");
})();
