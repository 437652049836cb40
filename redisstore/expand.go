package redisstore

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/seed83679106/weir/quota"
)

// A section is the charges of one value, which the direct part of a script decides together.
type section struct {
	no, first int // the numbers of the value, and of its first charge
	charges   []shaped
	words     []*strings.Replacer
}

// maxCopies is how many charges a script may have for each of them to get a copy of take. With
// more charges the text would become long.
const maxCopies = 8

// direct writes the direct part of a script. The argument of has the number of the algorithm of
// each charge.
func (b *lua) direct(shape []shaped, of []int) {
	var sections []section
	for i, c := range shape {
		if i == 0 || c.next {
			sections = append(sections, section{no: len(sections) + 1, first: i + 1})
		}
		p := &sections[len(sections)-1]
		p.charges = append(p.charges, c)
	}
	b.line("if ARGV[2] ~= '' then\nlocal call, wait, longest = redis.call, 0")
	edges := 2 * len(sections)
	defined := map[string]bool{}
	var decide, write, replies, rows string
	for _, p := range sections {
		for j, c := range p.charges {
			no, edge := p.first+j, "nil"
			if _, ok := c.algorithm.(Edged); ok {
				edges++
				edge = fmt.Sprintf("ARGV[%d]", edges)
			}
			words, function := c.words(no, of[no-1], edge, len(shape) <= maxCopies)
			p.words = append(p.words, words)
			if name := function + strconv.Itoa(of[no-1]); function != "" && !defined[name] {
				defined[name] = true
				text := c.algorithm.(Scripted).Lua()
				if function == "take" {
					text = takeOnly(c.algorithm)
				}
				b.line("local %s\ndo\n%s\n%[1]s = %[3]s\nend", name, text, function)
			}
		}
		text := directLua
		if isLog(p.charges[0].algorithm) {
			text = logsLua
		}
		d, w, _ := strings.Cut(p.expand(text), "-- write\n")
		b.line(p.expand("local text¤, reply¤, value¤, ttl¤"))
		decide, write, replies = decide+d, write+w, replies+p.expand(" .. reply¤")
		rows += p.expand("do\nlocal most, cost, «NUMBERS» = cmsgpack.unpack(PACKED)\nwithin, «rows[#]» = most, «ROW»\nend\n")
	}
	b.line("repeat\n%sif wait == 0 then\n%sreturn t[1] .. ' ' .. t[2] .. ' 1;'%s", decide, write, replies)
	b.line("elseif longest == 0 then\nreturn t[1] .. ' ' .. t[2] .. ' 0;'%s\nend\nuntil true", replies)
	b.line("times, rows = 1, {}\n%send", rows)
}

// words returns the words that stand for a charge in the text of a section: see expand. It also
// returns the name of the function that the text calls, or "".
func (c shaped) words(no, algorithm int, edges string, mayCopy bool) (words *strings.Replacer, function string) {
	numbers := []string{"#", strconv.Itoa(no), "@", strconv.Itoa(algorithm)}
	of := strings.NewReplacer(numbers...).Replace
	args := of("at#, a#, b#, till#, now, OF, x#, y#, z#, ") + edges + ", 0" // a value whose states have a C has other ids
	take, row := "", "{@, cost, NUMBERS, 0}"
	list := "x#, y#, z#"
	switch {
	case isLog(c.algorithm):
		list, row = "x#, y#", "{@, cost, x#, y#, 0, 0}"
	case c.kind == looks:
		row = "{@, 0, NUMBERS, 0}"
	case c.kind == cancels:
		function, list, row = "cancel", "x#, y#, z#, of#", "{@, cost, NUMBERS, 0, 0, 0, -1}"
	default:
		results := of("wait, at#, a#, b#, till#")
		args := strings.Replace(args, "OF", "cost", 1)
		if mayCopy {
			take = copyTake(c.algorithm, results, strings.Split(args, ", "))
		}
		if take == "" {
			function, take = "take", results+of(" = take@(")+args+")"
		}
	}
	cancel := of("cancel@(") + strings.Replace(args, "OF", of("of#, -cost"), 1) + ")"
	return strings.NewReplacer(append(numbers, "TAKE", take, "CANCEL", cancel, "NUMBERS", of(list), "ROW", of(strings.Replace(row, "NUMBERS", list, 1)))...), function
}

var repeated = regexp.MustCompile(`«([?!<]?)([^|»]*)(\|[^»]*)?»`)

// expand repeats the text between « and » once for each charge of the section. A text that begins
// with ? is repeated only for charges that spend, a text that begins with ! only for all others,
// and a text that begins with < only for those that give back the units of an instant. In the
// text, # becomes the number of the charge, @ the number of its algorithm, TAKE a call of its
// take, or a copy (see copyTake), CANCEL a call of its cancel, NUMBERS the names of its numbers,
// and ROW its row for general.lua. The part after | is written between two repetitions; without
// a | it is a comma and a space. Outside of « and », ¤ becomes the number of the value, IDS and
// PACKED its two texts in ARGV, and FIRST the number of its first charge.
func (p *section) expand(text string) string {
	text = strings.NewReplacer("¤", strconv.Itoa(p.no), "IDS", fmt.Sprintf("ARGV[%d]", 2*p.no-1), "PACKED", fmt.Sprintf("ARGV[%d]", 2*p.no), "FIRST", strconv.Itoa(p.first)).Replace(text)
	return repeated.ReplaceAllStringFunc(text, func(text string) string {
		m := repeated.FindStringSubmatch(text)
		var parts []string
		for i, c := range p.charges {
			if m[1] == "" || m[1] == "?" && c.kind == spends || m[1] == "!" && c.kind != spends || m[1] == "<" && c.kind == cancels {
				parts = append(parts, p.words[i].Replace(m[2]))
			}
		}
		return strings.Join(parts, cmp.Or(m[3], "|, ")[1:])
	})
}

// takeOnly returns the part of an algorithm's Lua that take needs: everything above cancel,
// queue and force. A function that a script defines and does not call would add 1 % to its time.
func takeOnly(a quota.Algorithm) string {
	text := a.(Scripted).Lua()
	for _, f := range []string{"cancel", "queue", "force"} {
		text, _, _ = strings.Cut(text, "local function "+f+"(")
	}
	return text
}

var (
	copied   = regexp.MustCompile(`(?s)-- copy take\nlocal function take\((.*?)\)\n(.*?)\nend\n`)
	returned = regexp.MustCompile(`(?m)\breturn (.*?)( end)?$`)
	word     = regexp.MustCompile(`\w+`)
)

// copyTake returns the body of an algorithm's take, with the arguments in place of the
// parameters, and with assignments to the results in place of the returns. A call would take
// 50 ns more of Redis's time. copyTake returns "" if take must be called instead.
//
// An algorithm asks for the copy by the line "-- copy take" above take. The body of take then
// must have no loop and no function, and must use no local of the Lua from outside the body.
// Each return must return something, and stand on one line with all that it returns. The first
// line that is only "end", not indented, must end take.
func copyTake(a quota.Algorithm, results string, args []string) string {
	text := takeOnly(a)
	m := copied.FindStringSubmatchIndex(text)
	if m == nil || strings.TrimSpace(text[m[1]:]) != "" { // there may be another take below
		return ""
	}
	params := strings.Split(text[m[2]:m[3]], ", ")
	body := word.ReplaceAllStringFunc(text[m[4]:m[5]], func(w string) string {
		if i := slices.Index(params, w); i >= 0 {
			return args[i]
		}
		return w
	})
	return "repeat\n" + returned.ReplaceAllString(body, results+" = $1 break$2") + "\nuntil true"
}
