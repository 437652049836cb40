// Says what the reader waits for, or why the pictures cannot move. This script is no module, so that
// it also runs in a page that was opened from a file.
document.getElementById("loading").textContent = location.protocol === "file:" ?
  "Opened from a file, a browser does not run the library, so the pictures stand still. Serve the directory, for example with python3 -m http.server." :
  "The library, 2 MB, is being loaded. Until it is there, the first picture shows what it decided when this page was made, and the others stand still.";
