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

// maxCopies is how many charges a script may have for each of them to get a copy of take. With
// more charges the text would become long.
const maxCopies = 8

var taken = regexp.MustCompile(`(wait, .*) = take(\d+)\((.*)\)`)

// direct writes the part of a script that decides without a loop over the charges. For each
// value, direct.lua or logs.lua decides, and if all charges fit, the end of the same file writes.
// If they cannot decide, this part prepares the rows that general.lua reads. The argument of has
// the number of the algorithm of each charge.
func (b *lua) direct(shape []shaped, algorithms []quota.Algorithm, of []int) {
	values := [][]shaped{nil}
	for _, c := range shape {
		if c.next {
			values = append(values, nil)
		}
		values[len(values)-1] = append(values[len(values)-1], c)
	}
	var locals, decide, write, replies, rows string
	for v, no, edges := 0, 0, 2*len(values); v < len(values); v++ {
		text, charges := directLua, values[v]
		if isLog(charges[0].algorithm) {
			text = logsLua
		}
		words := make([]*strings.Replacer, len(charges))
		for i, c := range charges {
			no++
			edge, cost, numbers, instant := "nil", "cost", fmt.Sprintf("x%d, y%[1]d, z%[1]d", no), "0"
			if _, ok := c.algorithm.(Edged); ok {
				edges++
				edge = fmt.Sprintf("ARGV[%d]", edges)
			}
			switch c.kind {
			case looks:
				cost = "0"
			case cancels:
				instant = fmt.Sprint("of", no)
				numbers += ", " + instant
			}
			words[i] = strings.NewReplacer("#", strconv.Itoa(no), "@", strconv.Itoa(of[no-1]), "EDGES", edge, "COST", cost, "NUMBERS", numbers, "INSTANT", instant)
		}
		value := strings.NewReplacer("¤", strconv.Itoa(v+1), "IDS", fmt.Sprintf("ARGV[%d]", 2*v+1), "PACKED", fmt.Sprintf("ARGV[%d]", 2*v+2)).Replace
		d, w, _ := strings.Cut(value(expand(text, charges, words)), "-- write\n")
		locals, decide, write, replies = locals+value("local text¤, reply¤, value¤, ttl¤\n"), decide+d, write+w, replies+value(" .. reply¤")
		rows += value(expand("do\nlocal «NUMBERS», cost, longest = cmsgpack.unpack(PACKED)\nwithin, «rows[#]» = longest, «{@, COST, x#, y#, z#, INSTANT, 0, 0, 0, -1}»\nend\n", charges, words))
	}
	if len(shape) <= maxCopies {
		decide = taken.ReplaceAllStringFunc(decide, func(call string) string {
			m := taken.FindStringSubmatch(call)
			n, _ := strconv.Atoi(m[2])
			return cmp.Or(copyTake(algorithms[n-1], m[1], strings.Split(m[3], ", ")), call)
		})
	}
	b.line("if ARGV[2] ~= '' then")
	for i, a := range algorithms {
		for _, f := range []string{"take", "cancel"} {
			if name := f + strconv.Itoa(i+1); strings.Contains(decide, name+"(") {
				b.line("local %s\ndo\n%s\n%[1]s = %[3]s\nend", name, upTo(a, f), f)
			}
		}
	}
	b.line("local call, find, pack, fields, numbers, wait = redis.call, string.find, struct.pack, struct.unpack, cmsgpack.unpack, 0\n%srepeat\n%sif wait == 0 then\n%sreturn t[1] .. ' ' .. t[2] .. ' 1;'%s", locals, decide, write, replies)
	b.line("elseif within == 0 then\nreturn t[1] .. ' ' .. t[2] .. ' 0;'%s\nend\nuntil true\ntimes, rows = 1, {}\n%send", replies, rows)
}

var repeated = regexp.MustCompile(`«([?!<]?)([^|»]*)(\|[^»]*)?»`)

// expand repeats the text between « and » once for each charge of a value. A text that begins with
// ? is repeated only for charges that spend, with ! only for all others, and with < only for
// those that give back the units of an instant. # becomes the number of the charge, and @ the
// number of its algorithm. The part after | is written between two repetitions; without a | it
// is a comma and a space. Everywhere, ¤ becomes the number of the value. For the words in
// capitals see direct.
func expand(text string, charges []shaped, words []*strings.Replacer) string {
	return repeated.ReplaceAllStringFunc(text, func(text string) string {
		m := repeated.FindStringSubmatch(text)
		var parts []string
		for i, c := range charges {
			if m[1] == "" || m[1] == "?" && c.kind == spends || m[1] == "!" && c.kind != spends || m[1] == "<" && c.kind == cancels {
				parts = append(parts, words[i].Replace(m[2]))
			}
		}
		return strings.Join(parts, cmp.Or(m[3], "|, ")[1:])
	})
}

// upTo returns the part of an algorithm's Lua that a function needs: for take, everything above
// cancel, queue and force. A function that a script defines and does not call would add 1 % to
// its time.
func upTo(a quota.Algorithm, function string) string {
	text := a.(Scripted).Lua()
	if function != "take" {
		return text
	}
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
	text := upTo(a, "take")
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
