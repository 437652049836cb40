package redisstore

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// The files direct.lua and logs.lua are templates for one value. For each charge of the value, a
// template repeats
//
//	-- each charge that spends   the lines up to the line "-- end"; see kinds for other headings
//	LIST{at_i, a_i}              the text in braces, with commas between
//	ANY{at_i > now}              a condition, with "or" between
//	ALL{low < b_i}               a condition, with "and" between
//	TIMES{dddd}                  a text, with nothing between
//
// In a name that ends with _i, the index of the charge replaces i; in a name that ends with _v, the
// index of the value replaces v. The methods named words define the words in capitals.
var (
	repeatedLines = regexp.MustCompile(`(?ms)^ *-- (each charge[a-z ]*)\n(.*?)^ *-- end\n`)
	repeatedText  = regexp.MustCompile(`(LIST|ANY|ALL|TIMES)\{([^{}]*)\}`)
	word          = regexp.MustCompile(`\w+`)

	between = map[string]string{"LIST": ", ", "ANY": " or ", "ALL": " and ", "TIMES": ""}
	kinds   = map[string][]kind{
		"each charge":                       {spends, leaves, looks, cancels},
		"each charge that spends":           {spends, leaves},
		"each charge that cancels":          {cancels},
		"each charge that looks or cancels": {looks, cancels},
	}
)

// A section of a script evaluates the charges of one value.
type section struct {
	no      int // index of the value, from 1
	charges []numbered
}

// A numbered charge is a charge of a shape with its indexes in the script.
type numbered struct {
	shaped
	no          int    // index of the charge, from 1
	algorithmNo int    // index of the charge's algorithm, from 1
	edges       string // Lua expression for the algorithm's edges, or "nil"
}

// sectionsOf returns the sections of a shape, and the algorithms in the order of their indexes.
func sectionsOf(shape []shaped) (sections []section, algorithms []quota.Algorithm) {
	values := 1
	for i := range shape {
		if shape[i].next {
			values++
		}
	}
	arg := 2 * values // before the edges, there are two texts for each value
	for i, c := range shape {
		if i == 0 || c.next {
			sections = append(sections, section{no: len(sections) + 1})
		}
		k := slices.IndexFunc(algorithms, func(a quota.Algorithm) bool { return a.Name() == c.algorithm.Name() })
		if k < 0 {
			k = len(algorithms)
			algorithms = append(algorithms, c.algorithm)
		}
		edges := "nil"
		if isEdged(c.algorithm) {
			arg++
			edges = fmt.Sprintf("ARGV[%d]", arg)
		}
		s := &sections[len(sections)-1]
		s.charges = append(s.charges, numbered{c, i + 1, k + 1, edges})
	}
	return sections, algorithms
}

// spendsUnits reports whether a section has a charge that spends units.
func (s *section) spendsUnits() bool {
	return slices.ContainsFunc(s.charges, func(c numbered) bool { return c.kind == spends || c.kind == leaves })
}

// callsAlgorithm reports whether a section calls a function of algorithm i.
func (s *section) callsAlgorithm(i int) bool {
	return slices.ContainsFunc(s.charges, func(c numbered) bool {
		_, inline := c.algorithm.(inlined)
		return c.algorithmNo == i && c.kind != looks && !isLog(c.algorithm) && (!inline || c.kind == cancels)
	})
}

// words returns the replacements for the words that concern the section's value.
func (s *section) words() map[string]string {
	return map[string]string{
		"VALUE":   fmt.Sprint(s.no),
		"KEY":     fmt.Sprintf("KEYS[%d]", s.no),
		"IDS":     fmt.Sprintf("ARGV[%d]", 2*s.no-1),
		"PACKED":  fmt.Sprintf("ARGV[%d]", 2*s.no),
		"CHARGES": fmt.Sprint(len(s.charges)),
		"SPENDS":  fmt.Sprint(s.spendsUnits()),
	}
}

// For each kind of charge, takeLines contains the Lua lines that call the functions of an
// algorithm. They are used if the algorithm is not inlined.
var takeLines = map[kind]string{
	spends: "wait, at, a, b, till = FUNCTION(at, a, b, till, now, cost, quota, period, burst, EDGES, 0)",
	leaves: "wait = FUNCTION(at, a, b, till, now, need, quota, period, burst, EDGES, 0)\n" +
		"if wait == 0 then wait, at, a, b, till = FUNCTION(at, a, b, till, now, cost, quota, period, burst, EDGES, 0) end",
}

// words returns the replacements for the words that concern a charge.
func (c *numbered) words() map[string]string {
	w := map[string]string{
		"CHARGE":    fmt.Sprint(c.no),
		"ALGORITHM": fmt.Sprint(c.algorithmNo),
		"CANCEL":    fmt.Sprint("cancel", c.algorithmNo),
		"NUMBERS":   fmt.Sprintf("x%d, y%[1]d, z%[1]d", c.no),
		"FORM":      "ddd",
		"COST":      "cost",
		"SPENT":     "0",
		"HEADROOM":  "0",
		"EDGES":     c.edges,
	}
	need := "cost"
	switch c.kind {
	case looks:
		w["COST"] = "0"
	case leaves:
		w["HEADROOM"] = fmt.Sprint("h", c.no)
		w["NUMBERS"] += ", " + w["HEADROOM"]
		w["FORM"] = "dddd"
		need = fmt.Sprint("(cost + h", c.no, ")")
	case cancels:
		w["SPENT"] = fmt.Sprint("of", c.no)
		w["NUMBERS"] += ", " + w["SPENT"]
		w["FORM"] = "dddd"
	}
	w["TAKE"] = takeLines[c.kind]
	if a, ok := c.algorithm.(inlined); ok {
		w["TAKE"] = a.Inline()
	}
	w["TAKE"] = fill(w["TAKE"], "_i", c.no, map[string]string{
		"at": fmt.Sprint("at", c.no), "a": fmt.Sprint("a", c.no), "b": fmt.Sprint("b", c.no), "till": fmt.Sprint("till", c.no),
		"quota": fmt.Sprint("x", c.no), "period": fmt.Sprint("y", c.no), "burst": fmt.Sprint("z", c.no),
		"need": need, "FUNCTION": fmt.Sprint("take", c.algorithmNo), "EDGES": c.edges,
	})
	return w
}

// lua returns the Lua code that a template produces for the section.
func (s *section) lua(template string) string {
	each := func(text string, kinds []kind, between string) string {
		var parts []string
		for _, c := range s.charges {
			if slices.Contains(kinds, c.kind) {
				parts = append(parts, fill(text, "_i", c.no, c.words()))
			}
		}
		return strings.Join(parts, between)
	}
	text := repeatedLines.ReplaceAllStringFunc(template, func(text string) string {
		m := repeatedLines.FindStringSubmatch(text)
		return each(m[2], kinds[m[1]], "")
	})
	text = repeatedText.ReplaceAllStringFunc(text, func(text string) string {
		m := repeatedText.FindStringSubmatch(text)
		return each(m[2], kinds["each charge"], between[m[1]])
	})
	return fill(text, "_v", s.no, s.words())
}

// fill replaces words with their values, and the suffix of any other name with a number.
func fill(text, suffix string, no int, words map[string]string) string {
	return word.ReplaceAllStringFunc(text, func(w string) string {
		if value, ok := words[w]; ok {
			return value
		}
		if name, ok := strings.CutSuffix(w, suffix); ok {
			return fmt.Sprint(name, no)
		}
		return w
	})
}

// rowsLua is another template. It prepares the rows that general.lua reads.
const rowsLua = `do
  local LIST{NUMBERS}, cost, longest = fields('<TIMES{FORM}dd', PACKED)
  within = longest
  -- each charge
  rows[CHARGE] = {ALGORITHM, COST, x_i, y_i, z_i, SPENT, HEADROOM}
  -- end
end
`

// direct writes the part of a script that evaluates charges without a loop. For each value, the
// first part of direct.lua or logs.lua makes the decisions. If all charges fit, the second part of
// that file writes the value. If these parts cannot evaluate the charges, general.lua does.
func (b *luaText) direct(sections []section, algorithms []quota.Algorithm) {
	b.line("if ARGV[2] ~= '' then")
	for i, a := range algorithms {
		if slices.ContainsFunc(sections, func(s section) bool { return s.callsAlgorithm(i + 1) }) {
			b.functions(a, i+1)
		}
	}
	var locals, decide, write, replies, rows string
	for _, s := range sections {
		template := directLua
		if isLog(s.charges[0].algorithm) {
			_, template, _ = strings.Cut(logsLua, "-- value\n")
		}
		first, last, _ := strings.Cut(s.lua(template), "-- write\n")
		decide, write = decide+first, write+last
		locals += s.lua("local reply_v, value_v, ttl_v\n")
		replies += s.lua(" .. reply_v")
		rows += s.lua(rowsLua)
	}
	b.line("local call, find, pack, fields, wait = redis.call, string.find, struct.pack, struct.unpack, 0")
	b.line("%srepeat\n%sif wait == 0 then", locals, decide)
	b.line("%sreturn t[1] .. ' ' .. t[2] .. ' 1;'%s", write, replies)
	b.line("elseif wait and within == 0 then\nreturn t[1] .. ' ' .. t[2] .. ' 0;'%s\nend\nuntil true", replies)
	b.line("times, rows = 1, {}\n%send", rows)
}

// functions defines the functions of an algorithm that a direct part calls. Their names end with i,
// the index of the algorithm.
func (b *luaText) functions(a quota.Algorithm, i int) {
	b.line("local take%d, cancel%[1]d\ndo\n%s\ntake%[1]d = take", i, a.(Scripted).Lua())
	if _, ok := a.(optional.Canceler); ok {
		b.line("cancel%d = cancel", i)
	}
	b.line("end")
}
