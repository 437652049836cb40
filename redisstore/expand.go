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

// direct writes the part of a script that decides without a loop over the charges. It begins with
// the functions that it calls. Then, for each value, direct.lua or logs.lua decides, and if all
// charges fit, the end of the same file writes. If they can't decide, rows are made for
// general.lua. The argument of has the number of the algorithm of each charge.
func (b *lua) direct(shape []shaped, of []int) {
	values := [][]shaped{nil}
	for _, c := range shape {
		if c.next {
			values = append(values, nil)
		}
		values[len(values)-1] = append(values[len(values)-1], c)
	}
	b.line("if ARGV[2] ~= '' then\nlocal call, wait, longest = redis.call, 0")
	var decide, write, replies, rows string
	defined, edges, first := map[string]bool{}, 2*len(values), 1
	for v, charges := range values {
		words := make([]*strings.Replacer, len(charges))
		for i, c := range charges {
			no, algorithm := strconv.Itoa(first+i), strconv.Itoa(of[first+i-1])
			name := strings.NewReplacer("#", no, "@", algorithm).Replace
			cost, function, edge := "cost", "take", "nil"
			if _, ok := c.algorithm.(Edged); ok {
				edges++
				edge = fmt.Sprintf("ARGV[%d]", edges)
			}
			numbers, row := name("x#, y#, z#"), "0"
			switch c.kind {
			case looks:
				cost, function = "0", ""
			case cancels:
				function, row = "cancel", name("of#")
				numbers += ", " + row
			}
			results, args := name("wait, at#, a#, b#, till#"), name("at#, a#, b#, till#, now, cost, x#, y#, z#, ")+edge+", 0" // a value whose states have a C has other ids
			take := ""
			if function == "take" && len(shape) <= maxCopies {
				take = copyTake(c.algorithm, results, strings.Split(args, ", "))
			}
			if function != "" && take == "" && !isLog(c.algorithm) && !defined[function+algorithm] {
				defined[function+algorithm] = true
				b.line("local %s%s\ndo\n%s\n%[1]s%[2]s = %[1]s\nend", function, algorithm, upTo(c.algorithm, function))
			}
			words[i] = strings.NewReplacer("#", no, "NUMBERS", numbers,
				"TAKE", cmp.Or(take, results+name(" = take@(")+args+")"),
				"CANCEL", name("cancel@(at#, a#, b#, till#, now, of#, -cost, x#, y#, z#, ")+edge+", 0)",
				"ROW", name("{@, "+cost+", x#, y#, z#, "+row+", 0, 0, 0, -1}"))
		}
		text := directLua
		if isLog(charges[0].algorithm) {
			text = logsLua
		}
		of := strings.NewReplacer("¤", strconv.Itoa(v+1), "IDS", fmt.Sprintf("ARGV[%d]", 2*v+1), "PACKED", fmt.Sprintf("ARGV[%d]", 2*v+2), "FIRST", strconv.Itoa(first)).Replace
		d, w, _ := strings.Cut(of(expand(text, charges, words)), "-- write\n")
		decide, write, replies = decide+d, write+w, replies+of(" .. reply¤")
		rows += of(expand("do\nlocal «NUMBERS», cost, most = cmsgpack.unpack(PACKED)\nwithin, «rows[#]» = most, «ROW»\nend\n", charges, words))
		b.line(of("local text¤, reply¤, value¤, ttl¤"))
		first += len(charges)
	}
	b.line("repeat\n%sif wait == 0 then\n%sreturn t[1] .. ' ' .. t[2] .. ' 1;'%s", decide, write, replies)
	b.line("elseif longest == 0 then\nreturn t[1] .. ' ' .. t[2] .. ' 0;'%s\nend\nuntil true\ntimes, rows = 1, {}\n%send", replies, rows)
}

var repeated = regexp.MustCompile(`«([?!<]?)([^|»]*)(\|[^»]*)?»`)

// expand repeats the text between « and » once for each charge of a value. A text that begins with
// ? is repeated only for charges that spend, with ! only for all others, and with < only for
// those that give back the units of an instant. # becomes the number of the charge, NUMBERS the
// names of its numbers, TAKE a call of its take, or a copy (see copyTake), CANCEL a call of its
// cancel, and ROW its row for general.lua. The part after | is written between two
// repetitions; without a | it is a comma and a space. Everywhere, ¤ becomes the number of
// the value, IDS and PACKED its two texts in ARGV, and FIRST the number of its first charge.
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
