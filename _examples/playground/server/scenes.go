package server

import (
	"bytes"
	"html"
	"html/template"
	"io/fs"
	"regexp"
	"strings"
)

// sceneLink is what sites that show a preview read of a link to a scene. A reader goes on to the story.
var sceneLink = template.Must(template.New("").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}}</title>
<meta name="description" content="{{.About}}">
<meta property="og:type" content="article">
<meta property="og:title" content="{{.Title}}">
<meta property="og:description" content="{{.About}}">
<meta property="og:image" content="og/{{.ID}}.png">
<meta property="og:image:width" content="1200">
<meta property="og:image:height" content="630">
<meta name="twitter:card" content="summary_large_image">
<link rel="icon" href="icon.svg">
<script src="story/goto.js" data-scene="{{.ID}}"></script>
<meta http-equiv="refresh" content="0; url=./#{{.ID}}">
</head>
<body><p><a href="./#{{.ID}}">{{.Title}}</a></p></body>
</html>
`))

var (
	sectionStart = regexp.MustCompile(`<section id="([a-z]+)"`)
	sectionTitle = regexp.MustCompile(`<h2 [^>]*>(?:<span>\d+</span> )?(.*?)</h2>`)
	sectionAbout = regexp.MustCompile(`(?s)</h2>\s*(<p>.*?)<p [cd]`) // up to the rule, or what the library says
	pageAbout    = regexp.MustCompile(`<meta name="description" content="(.*?)">`)
	tag          = regexp.MustCompile(`<[^>]*>`)
)

// scenePages returns the pages of scenes, by the names of their files, such as edge.html. Each has the title
// of its scene in index.html, and its first sentences.
func scenePages() (map[string][]byte, error) {
	index, err := fs.ReadFile(Page(), "index.html")
	if err != nil {
		return nil, err
	}
	pages, starts := map[string][]byte{}, sectionStart.FindAllSubmatchIndex(index, -1)
	for i, at := range starts {
		section := index[at[0]:]
		if i+1 < len(starts) {
			section = index[at[0]:starts[i+1][0]]
		}
		about := sectionAbout.FindSubmatch(section)
		if about == nil { // it has none before its form
			about = pageAbout.FindSubmatch(index)
		}
		id := string(index[at[2]:at[3]])
		var page bytes.Buffer
		if err := sceneLink.Execute(&page, struct{ ID, Title, About string }{id, text(sectionTitle.FindSubmatch(section)[1]), text(about[1])}); err != nil {
			return nil, err
		}
		pages[id+".html"] = page.Bytes()
	}
	return pages, nil
}

// text returns a piece of HTML as a browser shows it, on one line and without its pictures.
func text(piece []byte) string {
	words := strings.Fields(html.UnescapeString(string(tag.ReplaceAll(piece, nil))))
	return strings.ReplaceAll(strings.Join(words, " "), " ()", "")
}
