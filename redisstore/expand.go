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

var repeated = regexp.MustCompile(`«([?!]?)([^|»]*)(\|[^»]*)?»`)

// expand repeats the text between « and » once for each charge. A text that begins with ? is
// repeated only for charges that spend, and a text that begins with ! only for charges of
// cost 0. In the text, # becomes the number of the charge, @ the number of its algorithm, $
// its cost, and TAKE a call of its take, or a copy (see copyTake). The part after | is written
// between two repetitions; without a | it is a comma and a space. Outside of « and », TAKES
// becomes the functions take that are called.
func expand(text string, shape []shaped, of []int) string {
	var takes lua
	edges := 2
	charges := make([]*strings.Replacer, len(shape))
	for i, c := range shape {
		no, name, cost := strconv.Itoa(i+1), fmt.Sprintf("take%d", of[i]), "cost"
		if c.look {
			cost = "0"
		}
		number := strings.NewReplacer("#", no)
		results, args := number.Replace("wait, at#, a#, b#, till#"), number.Replace("at#, a#, b#, till#, now, cost, x#, y#, z#")
		if _, ok := c.algorithm.(Edged); ok {
			edges++
			args += fmt.Sprintf(", ARGV[%d], 0", edges)
		} else {
			args += ", nil, 0" // a value whose states have a C has other ids
		}
		take := copyTake(c.algorithm, results, strings.Split(args, ", "))
		if take == "" {
			take = fmt.Sprintf("%s = %s(%s)", results, name, args)
			if slices.Index(of, of[i]) == i {
				takes.line("local %s\ndo\n%s\n%[1]s = take\nend", name, takeOnly(c.algorithm))
			}
		}
		charges[i] = strings.NewReplacer("#", no, "@", strconv.Itoa(of[i]), "$", cost, "TAKE", take)
	}
	text = repeated.ReplaceAllStringFunc(text, func(text string) string {
		m := repeated.FindStringSubmatch(text)
		var parts []string
		for i, c := range shape {
			if m[1] == "" || (m[1] == "!") == c.look {
				parts = append(parts, charges[i].Replace(m[2]))
			}
		}
		return strings.Join(parts, cmp.Or(m[3], "|, ")[1:])
	})
	return strings.Replace(text, "TAKES", takes.String(), 1)
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
