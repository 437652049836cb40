package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/seed83679106/weir/_examples/playground/server"
)

var update = flag.Bool("update", false, "write the pictures and the decisions that the page has before the library is loaded")

const (
	indexFile    = "../server/page/index.html"
	recordedFile = "../server/page/story/recorded.js"
	ogFile       = "../server/page/og.png" // what other sites show beside a link to the page
)

// starts is a script that returns what the story shows when it opens, by the name that the
// comments in index.html have: still pictures, with the sentence below them as their text,
// the sentences that scenes compute, the chat, and the table and the code of the ending.
const starts = `(() => {
	const all = {};
	const still = (svg, text) => {
		const e = svg.cloneNode(true);
		for (const x of e.querySelectorAll(".dot:not(.past), .under, .grip, .pad, .knob, text:empty, g:empty, line[width='0']")) x.remove();
		for (const dot of e.querySelectorAll(".dot")) {
			const marks = [...dot.querySelectorAll(".mark")];
			if (dot.classList.contains("later")) for (const m of marks) m.setAttribute("class", m.getAttribute("class").replace("passed", "waits"));
			dot.replaceWith(...marks);
		}
		for (const x of [e, ...e.querySelectorAll("*")]) for (const a of ["role", "tabindex", "aria-label", "aria-hidden", "aria-valuemin", "aria-valuemax", "aria-valuenow", "aria-selected"]) x.removeAttribute(a);
		e.setAttribute("role", "img");
		e.setAttribute("aria-label", text);
		return e.outerHTML.replace(/><\/(circle|path|line|rect)>/g, "/>");
	};
	const { gate, ...rest } = playground.scenes;
	all.gate = still(gate.picture, document.querySelector("#gate .say").textContent);
	all["gate say"] = document.querySelector("#gate .say").textContent;
	for (const [id, s] of Object.entries(rest)) {
		if (!s.go) continue;
		const say = s.root.querySelector(".say").textContent;
		all[id] = '<div class="frame start' + (s.gauge ? " both" : "") + '">' + still(s.picture, say) + (s.gauge ? still(s.gauge, s.scene.gaugeName) : "") + '</div><p class="say">' + say + "</p>";
		for (const p of s.root.querySelectorAll("[data-tell]")) all[id + " " + p.dataset.tell] = p.innerHTML.replaceAll(' tabindex="0"', "");
	}
	const { chat, replicas, outage } = playground.scenes;
	all["chat room"] = chat.room.innerHTML;
	all["chat users"] = chat.users.innerHTML;
	for (const [id, s] of Object.entries({ replicas, outage })) {
		s.reset(); // because the time goes on
		const say = s.root.querySelector(".say").textContent;
		all[id] = still(s.picture, say).replace(/ (fill|stroke)-opacity="[^"]*"/g, "");
		all[id + " say"] = say;
	}
	all["outage lesson"] = outage.root.querySelector("[data-tell]").innerHTML;
	const which = playground.which.root, html = (selector) => which.querySelector(selector).innerHTML;
	all.which = html("tbody");
	for (const name of ["traffic", "advice", "customers", "go", "yaml", "test"]) all["which " + name] = html("." + name);
	for (const [name, text] of Object.entries(all)) all[name] = text.replace(/<!--.*?-->/g, "");
	return all;
})()`

// TestStart compares index.html with what the library makes of the scenes: the page has a
// picture of each before the library is loaded, and where it never is. With -update it
// writes them:
//
//	go test -C _examples/playground/e2e -run TestStart -update
func TestStart(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(indexFile)
	if err != nil {
		t.Fatal(err)
	}
	p := openWhole(t, serveStatic(t))
	t.Run("recorded", func(t *testing.T) { checkRecorded(t, p) })
	all, text := eval[map[string]string](p, starts), string(page)
	for name, want := range all {
		between := regexp.MustCompile(`(?s)<!--` + name + `-->.*?<!--/` + name + `-->`)
		if !between.MatchString(text) {
			t.Errorf("index.html has no place for %q", name)
		}
		text = between.ReplaceAllLiteralString(text, "<!--"+name+"-->"+want+"<!--/"+name+"-->")
	}
	if n := strings.Count(text, "<!--/"); n != len(all) {
		t.Errorf("index.html has %d places, want %d", n, len(all))
	}
	wrong := eval[[]string](p, `[...document.querySelectorAll("section [data-number]")].filter((e) => e.getAttribute("value") !== e.value).map((e) => e.closest("section").id + " " + e.dataset.number)`)
	if len(wrong) > 0 {
		t.Errorf("index.html has other numbers than the scenes: %v", wrong)
	}
	if *update {
		if err := os.WriteFile(indexFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		p.do(chromedp.EmulateViewport(1200, 630))
		p.wait("playground.scenes.gate.width === playground.scenes.gate.picture.clientWidth")
		view, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(ogFile, view, 0o644); err != nil {
			t.Fatal(err)
		}
		for _, id := range sections(text) {
			eval[any](p, fmt.Sprintf(`(document.getElementById(%q).scrollIntoView({ behavior: "instant" }), new Promise((next) => setTimeout(next, 500)))`, id))
			view, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
			if err == nil {
				view, err = smaller(view)
			}
			if err == nil {
				err = os.WriteFile("../server/page/og/"+id+".png", view, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	} else if text != string(page) {
		t.Error("index.html is not current: run go test -run TestStart -update, and look at the change")
	}
}

// sections returns the ids of the scenes in index.html.
func sections(index string) (ids []string) {
	for _, m := range regexp.MustCompile(`<section id="([a-z]+)"`).FindAllStringSubmatch(index, -1) {
		ids = append(ids, m[1])
	}
	return ids
}

// smaller returns a picture with its 256 most frequent colors.
func smaller(data []byte) ([]byte, error) {
	picture, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	box, count := picture.Bounds(), map[color.Color]int{}
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			count[picture.At(x, y)]++
		}
	}
	colors := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return count[b] - count[a] })
	few := image.NewPaletted(box, colors[:min(256, len(colors))])
	draw.Draw(few, box, picture, box.Min, draw.Src)
	var packed bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&packed, few)
	return packed.Bytes(), err
}

// checkRecorded compares recorded.js with what the library decides about the traffic of the first
// picture, in the first round and in a later one.
func checkRecorded(t *testing.T, p *page) {
	t.Helper()
	file, err := os.ReadFile(recordedFile)
	if err != nil {
		t.Fatal(err)
	}
	const begin = "export const recorded = "
	head, _, _ := strings.Cut(string(file), begin)
	rounds := eval[[]string](p, `import("./story/gates.js").then((m) => [0, 5].map((round) => JSON.stringify(m.record(round))))`)
	if rounds[0] != rounds[1] {
		t.Error("a later round of the traffic is decided differently")
	}
	want := head + begin + strings.ReplaceAll(rounds[0], "]],[[", "]],\n[[") + ";\n"
	if *update {
		if err := os.WriteFile(recordedFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(file) {
		t.Error("recorded.js is not current: run go test -run TestStart -update")
	}
}

// TestWithoutScript opens the story without scripts, and from a file. Each scene must have
// its picture and its sentences, and the page must not say that it loads.
func TestWithoutScript(t *testing.T) {
	t.Parallel()
	p := open(t, "")
	script := func(disabled bool) {
		if _, err := chromedp.Call(p.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: disabled}); err != nil {
			t.Fatal(err)
		}
	}
	const there = `(() => ({
		marks: [...document.querySelectorAll("#gate, main .stage:has(.start)")].map((e) => e.querySelectorAll(".mark").length),
		more: ["#replicas .mark", "#outage .mark", "#chat .room li", "#chat .token", "#which tbody tr", "#which pre:not(:empty)"].map((s) => document.querySelectorAll(s).length),
		says: [...document.querySelectorAll("[data-tell]:has(b)")].length,
		loading: document.getElementById("loading").textContent,
	}))()`
	type shown struct {
		Marks   []int
		More    []int
		Says    int
		Loading string
	}
	check := func(how string, loading string) {
		got := eval[shown](p, there)
		if len(got.Marks) != 1+len(tapes) {
			t.Errorf("%s: %d pictures, want %d", how, len(got.Marks), 1+len(tapes))
		}
		for i, n := range got.Marks {
			if n < 10 {
				t.Errorf("%s: picture %d has %d marks", how, i, n)
			}
		}
		if want := []int{18, 15, 14, 7, 8, 3}; !slices.Equal(got.More, want) {
			t.Errorf("%s: the other scenes have %v marks, lines, tokens, rows and texts, want %v", how, got.More, want)
		}
		if got.Says < len(tapes) {
			t.Errorf("%s: %d sentences with numbers, want %d", how, got.Says, len(tapes))
		}
		if !strings.Contains(got.Loading, loading) || loading == "" && got.Loading != "" {
			t.Errorf("%s: the page says %q, want %q", how, got.Loading, loading)
		}
	}
	base := serveStatic(t)
	script(true)
	p.do(chromedp.Navigate(base))
	check("without scripts", "")
	if dead := eval[[]string](p, `[...document.querySelectorAll("button")].filter((e) => e.checkVisibility({ visibilityProperty: true })).map((e) => e.textContent)`); len(dead) > 0 {
		t.Errorf("without scripts the page shows buttons that do nothing: %v", dead)
	}
	script(false)
	p.do(chromedp.Navigate("about:blank"))
}

// TestMinutes compares the time to read that the page names with its number of words, at 200 a minute.
func TestMinutes(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(indexFile)
	if err != nil {
		t.Fatal(err)
	}
	_, scenes, _ := strings.Cut(string(page), "<main>")
	scenes = regexp.MustCompile(`(?s)<(svg|pre|table|button).*?</(svg|pre|table|button)>|<[^>]*>`).ReplaceAllString(scenes, " ")
	told := regexp.MustCompile(`(\d+) scenes, (\d+) minutes to read`).FindStringSubmatch(string(page))
	if told == nil {
		t.Fatal("the page does not say how long it takes")
	}
	if n := strings.Count(string(page), "<section "); strconv.Itoa(n) != told[1] {
		t.Errorf("the page says %s scenes and has %d", told[1], n)
	}
	words := len(strings.Fields(scenes))
	if minutes, _ := strconv.ParseFloat(told[2], 64); math.Abs(float64(words)/200-minutes) > 2 {
		t.Errorf("the page says %v minutes to read, and has %d words", minutes, words)
	}
}

// TestScenePages reads the page of each scene, as sites do that show a preview of a link. Each has a
// title of its own and a picture, which the directory of a static site has, too. There, the picture
// has an absolute URL.
func TestScenePages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const url = "https://example.com/limits"
	if err := server.WriteStatic(dir, url+"/", nil); err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile(indexFile)
	if err != nil {
		t.Fatal(err)
	}
	base, titles := serve(t), map[string]string{}
	meta := func(page, name string) string {
		m := regexp.MustCompile(`<meta (?:property|name)="` + name + `" content="(.*?)">`).FindStringSubmatch(page)
		if m == nil {
			return ""
		}
		return m[1]
	}
	ids := sections(string(index))
	if len(ids) < 16 {
		t.Fatalf("there are %d scenes", len(ids))
	}
	for _, id := range append([]string{"index"}, ids...) {
		name := id + ".html"
		written, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		title, about, picture := meta(string(written), "og:title"), meta(string(written), "og:description"), meta(string(written), "og:image")
		if title == "" || len(about) < 40 || strings.ContainsAny(title+about, "<>") || strings.Contains(about, "()") || titles[title] != "" {
			t.Errorf("%s: the title is %q (also of %q), and the description %q", name, title, titles[title], about)
		}
		titles[title] = name
		file, ok := strings.CutPrefix(picture, url+"/")
		og, err := os.Open(filepath.Join(dir, filepath.FromSlash(file)))
		if err != nil || !ok {
			t.Errorf("%s: the picture is %s: %v", name, picture, err)
			continue
		}
		size, err := png.DecodeConfig(og)
		og.Close()
		if err != nil || size.Width != 1200 || size.Height != 630 {
			t.Errorf("%s: %v by %v, %v; want 1200 by 630", file, size.Width, size.Height, err)
		}
		if id == "index" {
			continue
		}
		if !strings.Contains(string(index), `<h2 id="`+id+`-title">`) || !strings.Contains(string(written), `url=./#`+id+`"`) {
			t.Errorf("%s does not lead to a scene", name)
		}
		for _, path := range []string{name, file} { // of the program, too
			resp, err := http.Get(base + "/" + path)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != 200 || path == name && meta(string(body), "og:title") != title {
				t.Errorf("GET /%s: status %d", path, resp.StatusCode)
			}
		}
	}
}
