// Says what the reader waits for, or why the pictures cannot move. This script is no module, so that
// it also runs in a page that was opened from a file.
document.getElementById("loading").textContent = location.protocol === "file:" ?
  "Opened from a file, a browser does not run the library, so the pictures stand still. Serve the directory, for example with python3 -m http.server." :
  "The pictures begin to move when the library has been loaded: 2 MB.";
