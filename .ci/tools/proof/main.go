// Proof runs the tests behind docs/guarantees.md and says of each claim whether it held.
//
//	go run -C .ci/tools ./proof                  # the usual rounds
//	WEIR_LONG=1 go run -C .ci/tools ./proof      # as many as CI
//	go run -C .ci/tools ./proof -claims Hybrid   # claims that contain a text
//	go run -C .ci/tools ./proof -list            # the claims and their tests, without running them
//
// It prints a line for each claim: held, failed or not run, the number of cases, the seconds of its
// tests, and the claim. A case is a test, or a subtest if there are any; many cases search through
// thousands of histories. A claim whose test is skipped, because a program such as redis-server is
// missing, was not run. The exit status is 1 unless every claim held.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const page = "docs/guarantees.md"

func main() {
	log.SetFlags(0)
	log.SetPrefix("proof: ")
	only := flag.String("claims", "", "run only claims that contain this text")
	list := flag.Bool("list", false, "print claims and tests, and run nothing")
	flag.Parse()
	root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err == nil {
		err = os.Chdir(strings.TrimSpace(string(root)))
	}
	if err != nil {
		log.Fatal(err)
	}
	all, err := claims(*only)
	if err != nil {
		log.Fatal(err)
	}
	if *list {
		for _, c := range all {
			fmt.Printf("%s: %s\n", c.text, strings.Join(c.tests, ", "))
		}
		return
	}
	results, err := run(all)
	if err != nil {
		log.Fatal(err)
	}
	held := true
	for _, c := range all {
		state, cases, seconds := c.judge(results)
		held = held && state == "held"
		fmt.Printf("%-8s %5d cases %6.1f s  %s\n", state, cases, seconds, c.text)
	}
	if !held {
		os.Exit(1)
	}
}

// A claim is a row or a paragraph of the page that names tests.
type claim struct {
	text  string
	tests []string
}

var (
	testName = regexp.MustCompile("`(Test\\w+)`")
	link     = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	sentence = regexp.MustCompile(`^(.*?\.)(\s|$)`)
)

func claims(only string) (all []claim, err error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	section := ""
	for line := range strings.Lines(string(text)) {
		if title := strings.TrimLeft(line, "#"); title != line {
			section = strings.TrimSpace(title)
		}
		c := claim{text: section + ": " + short(line)}
		for _, m := range testName.FindAllStringSubmatch(line, -1) {
			if !slices.Contains(c.tests, m[1]) {
				c.tests = append(c.tests, m[1])
			}
		}
		if len(c.tests) > 0 && strings.Contains(c.text, only) {
			all = append(all, c)
		}
	}
	return all, nil
}

// short returns the first cell of a row, with the second if that says how much, or the first
// sentence of a paragraph.
func short(line string) string {
	line = strings.TrimPrefix(strings.TrimSpace(link.ReplaceAllString(line, "$1")), "- ")
	if row, ok := strings.CutPrefix(line, "| "); ok {
		cells := strings.Split(row, " | ")
		line = cells[0]
		if len(cells) > 2 && !testName.MatchString(cells[1]) {
			line += ": " + cells[1]
		}
	} else if m := sentence.FindString(line); m != "" {
		line = m
	}
	line, _, _ = strings.Cut(line, ": `Test")
	return strings.TrimSpace(strings.ReplaceAll(line, "**", ""))
}

// A result is what all tests of one name have done.
type result struct {
	passed, failed, skipped int
	cases                   int
	seconds                 float64
}

// run runs the tests of all claims, each package once.
func run(all []claim) (map[string]*result, error) {
	wanted := map[string]*result{}
	for _, c := range all {
		for _, name := range c.tests {
			wanted[name] = new(result)
		}
	}
	packages, err := packagesOf(wanted)
	if err != nil {
		return nil, err
	}
	for _, p := range packages {
		cmd := exec.Command("go", "test", "-C", p.dir, "-count=1", "-json", "-timeout", "30m", "-run", "^("+strings.Join(p.tests, "|")+")$", ".")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output() // a test that fails is an event
		if len(out) == 0 && err != nil {
			return nil, fmt.Errorf("%s: %w", cmd, err)
		}
		count(out, wanted)
	}
	return wanted, nil
}

// count adds the events of go test -json to the results.
func count(out []byte, results map[string]*result) {
	var e struct {
		Action, Test string
		Elapsed      float64
	}
	children := map[string]int{}
	s := bufio.NewScanner(bytes.NewReader(out))
	s.Buffer(nil, 1<<24)
	for s.Scan() {
		e.Test = ""
		if json.Unmarshal(s.Bytes(), &e) != nil {
			continue
		}
		name, _, sub := strings.Cut(e.Test, "/")
		r := results[name]
		if r == nil {
			continue
		}
		switch {
		case sub && (e.Action == "pass" || e.Action == "fail"):
			children[name]++
		case e.Action == "pass":
			r.passed++
		case e.Action == "fail":
			r.failed++
		case e.Action == "skip" && !sub:
			r.skipped++
		default:
			continue
		}
		if !sub {
			r.seconds += e.Elapsed
			r.cases += max(1, children[name])
		}
	}
}

type tested struct {
	dir   string
	tests []string
}

// packagesOf returns where the tests stand.
func packagesOf(wanted map[string]*result) (packages []tested, err error) {
	files, err := exec.Command("git", "ls-files", "*_test.go").Output()
	if err != nil {
		return nil, err
	}
	at := map[string]int{}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, name := range strings.Fields(string(files)) {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for _, m := range function.FindAllSubmatch(text, -1) {
			test := string(m[1])
			if wanted[test] == nil {
				continue
			}
			dir := filepath.ToSlash(filepath.Dir(name))
			if _, ok := at[dir]; !ok {
				at[dir] = len(packages)
				packages = append(packages, tested{dir: dir})
			}
			packages[at[dir]].tests = append(packages[at[dir]].tests, test)
		}
	}
	return packages, nil
}

// judge says whether a claim held: every test of every name has passed.
func (c *claim) judge(results map[string]*result) (state string, cases int, seconds float64) {
	state = "held"
	for _, name := range c.tests {
		r := results[name]
		cases, seconds = cases+r.cases, seconds+r.seconds
		switch {
		case r.failed > 0:
			return "FAILED", cases, seconds
		case r.passed == 0 || r.skipped > 0:
			state = "NOT RUN"
		}
	}
	return state, cases, seconds
}
