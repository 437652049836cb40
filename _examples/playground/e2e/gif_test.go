package e2e

import (
	"bytes"
	"cmp"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/png"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestMovingPicture writes the animation of README.md, from screenshots of the first
// picture of the story:
//
//	GIF=$PWD/docs/figures/playground.gif go test -C _examples/playground/e2e -run TestMovingPicture
func TestMovingPicture(t *testing.T) {
	t.Parallel()
	file := os.Getenv("GIF")
	if file == "" {
		t.Skip("GIF is not set: it names the file to write")
	}
	p := openStory(t, serveStatic(t))
	p.do(chromedp.EmulateViewport(800, 900))
	p.wait("playground.scenes.gate.width === playground.scenes.gate.picture.clientWidth")
	var shots []image.Image
	for now := 46_000_000; now <= 54_500_000; now += 100_000 { // µs: until after an attack
		eval[any](p, fmt.Sprintf("{ const g = playground.scenes.gate; g.until(%d); g.fill(); g.move(); }", now))
		shot, err := chromedp.Run(p.ctx, chromedp.Screenshot(chromedp.CSS("#gate .frame")))
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := png.Decode(bytes.NewReader(shot))
		if err != nil {
			t.Fatal(err)
		}
		shots = append(shots, decoded)
	}
	var text bytes.Buffer
	if err := gif.EncodeAll(&text, movie(shots)); err != nil {
		t.Fatal(err)
	}
	if text.Len() > 2<<20 {
		t.Errorf("the picture has %d bytes", text.Len())
	}
	if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// movie joins pictures to an animation of 10 frames a second. Each frame has only the
// rectangle that has changed.
func movie(shots []image.Image) *gif.GIF {
	palette, index := paletteOf(shots)
	m := &gif.GIF{}
	var before *image.Paletted
	for _, shot := range shots {
		now, changed := paint(shot, shots[0].Bounds(), palette, index, before)
		before = now
		if changed.Empty() {
			m.Delay[len(m.Delay)-1] += 10
			continue
		}
		m.Image, m.Delay = append(m.Image, now.SubImage(changed).(*image.Paletted)), append(m.Delay, 10)
	}
	m.Delay[len(m.Delay)-1] += 300
	return m
}

// paletteOf returns the 255 most frequent colors, and for each color of the pictures the
// index of the nearest of these 255.
func paletteOf(shots []image.Image) (palette color.Palette, index map[color.RGBA]uint8) {
	used := map[color.RGBA]int{}
	for _, shot := range shots {
		for y := range shot.Bounds().Dy() {
			for x := range shot.Bounds().Dx() {
				used[color.RGBAModel.Convert(shot.At(x, y)).(color.RGBA)]++
			}
		}
	}
	often := slices.SortedFunc(maps.Keys(used), func(a, b color.RGBA) int { return cmp.Compare(used[b], used[a]) })
	for _, c := range often[:min(255, len(often))] {
		palette = append(palette, c)
	}
	index = map[color.RGBA]uint8{}
	for c := range used {
		index[c] = uint8(palette.Index(c))
	}
	return palette, index
}

// paint returns a picture in the colors of the palette, and the rectangle that differs from
// the previous picture. If there is no previous picture, it is the whole rectangle.
func paint(shot image.Image, bounds image.Rectangle, palette color.Palette, index map[color.RGBA]uint8, before *image.Paletted) (now *image.Paletted, changed image.Rectangle) {
	now = image.NewPaletted(bounds, palette)
	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			i := index[color.RGBAModel.Convert(shot.At(x, y)).(color.RGBA)]
			now.SetColorIndex(x, y, i)
			if before == nil || before.ColorIndexAt(x, y) != i {
				changed = changed.Union(image.Rect(x, y, x+1, y+1))
			}
		}
	}
	return now, changed
}
