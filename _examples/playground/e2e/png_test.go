package e2e

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestCopyPicture copies the picture of a scene, and of try.html, with the keyboard. The PNG must be
// as large as the picture and its text, at two pixels a px, and show requests that passed. If
// the browser does not let the page copy, the page must save the same file.
func TestCopyPicture(t *testing.T) {
	t.Parallel()
	base := serve(t)
	for name, test := range map[string]struct{ path, ready, button, frame string }{
		"story": {"/?still", "globalThis.playground?.ready", "#edge .photo", "#edge .frame"},
		"try":   {"/try.html#paused=yes&pattern=bursts", `document.querySelectorAll(".line .mark").length > 9`, "#photo", "#lines"},
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, "")
			p.do(chromedp.Navigate(base + test.path))
			p.wait(test.ready)
			eval[any](p, `{
				globalThis.written = undefined;
				navigator.clipboard.write = async ([item]) => { item.getType("image/png").then((png) => { written = png; }); }; // the page waits only 3 s for it
				let blob;
				const url = URL.createObjectURL;
				URL.createObjectURL = (b) => url.call(URL, blob = b);
				HTMLAnchorElement.prototype.click = function () { [saved, written] = [this.download, this.href.startsWith("blob:") && blob]; };
			}`)
			for _, saved := range []string{"", "rate-limit.png"} {
				if saved != "" {
					eval[any](p, `{ globalThis.saved = globalThis.written = undefined; navigator.clipboard.write = async () => { throw new Error("not allowed"); }; }`)
				}
				p.do(chromedp.Focus(chromedp.CSS(test.button)), chromedp.KeyEvent(kb.Enter))
				p.wait("globalThis.written")
				text := eval[string](p, `written.arrayBuffer().then((b) => btoa(new Uint8Array(b).reduce((s, x) => s + String.fromCharCode(x), "")))`)
				file, err := base64.StdEncoding.DecodeString(text)
				if err != nil {
					t.Fatal(err)
				}
				if dir := os.Getenv("PICTURES"); dir != "" {
					os.WriteFile(filepath.Join(dir, "copied-"+name+".png"), file, 0o644)
				}
				picture, err := png.Decode(bytes.NewReader(file))
				if err != nil {
					t.Fatal(err)
				}
				size := eval[[2]float64](p, fmt.Sprintf(`(({ width, height }) => [width, height])(document.querySelector(%q).getBoundingClientRect())`, test.frame))
				w, h := picture.Bounds().Dx(), picture.Bounds().Dy()
				if float64(w) != float64(int(2*(size[0]+32))) || float64(h) < 2*(size[1]+72) || float64(h) > 2*(size[1]+172) {
					t.Errorf("the PNG has %d by %d pixels for a picture of %v", w, h, size)
				}
				passed, refused, ink := 0, 0, 0
				for y := range h {
					for x := range w {
						r, g, b, _ := picture.At(x, y).RGBA()
						switch [3]uint32{r >> 8, g >> 8, b >> 8} {
						case [3]uint32{0x00, 0x80, 0x5a}:
							passed++
						case [3]uint32{0xc3, 0x3a, 0x22}:
							refused++
						case [3]uint32{0x1b, 0x21, 0x26}:
							ink++
						}
					}
				}
				if passed < 1000 || refused < 50 || ink < 500 {
					t.Errorf("the PNG has %d pixels of requests that passed, %d of refused ones and %d of text", passed, refused, ink)
				}
				if got := eval[string](p, "globalThis.saved ?? ''"); got != saved {
					t.Errorf("the page saved %q, want %q", got, saved)
				}
			}
		})
	}
}
