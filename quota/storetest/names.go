package storetest

import (
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

func unprintable(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// names: states of different rules, keys, limits and algorithms are kept separate, whatever their
// names. An empty rule or key is a valid name. A limit without a name is stored under the name of
// its period.
func names(p *replay) {
	odd := []string{
		"", "a", "A", ":", "a:", ":a", "/", "a/", "1:a", " ", "a ", "\x00", "a\x00", "\n", "a\r\nb", "{", "}", "{}", "{a}", "}a{",
		"*", "%d", `\`, `"`, "é", "e\u0301", "世界", "\xff\xfe", "a|b", "0", "-1",
	}
	printable := slices.DeleteFunc(slices.Clone(odd), unprintable)
	all := algorithms.GCRA(1000, time.Hour)
	for _, s := range odd {
		if unprintable(s) { // header fields and logs cannot contain such a name, so Take returns an error
			for _, c := range []quota.Charge{{Rule: s, Key: p.run, Limit: all}, {Rule: p.run, Key: p.run, Limit: all.Named(s)}} {
				p.takeError(p.Context(), &quota.Transaction{Charges: []quota.Charge{c}})
				p.takeError(p.Context(), &quota.Transaction{Charges: []quota.Charge{p.charge("good", all, 1), c}})
			}
		}
	}
	var ids []quota.Charge
	for _, rule := range printable[:13] {
		for _, key := range odd[:16] {
			ids = append(ids, quota.Charge{Rule: rule, Key: key, Limit: all.Named(p.run)})
		}
	}
	for _, s := range odd {
		ids = append(ids, quota.Charge{Rule: p.run, Key: s, Limit: all})
	}
	for _, s := range printable {
		ids = append(ids,
			quota.Charge{Rule: s, Key: p.run, Limit: all},
			quota.Charge{Rule: p.run + s, Key: s, Limit: all.Named(s)},
			quota.Charge{Rule: s, Key: p.run + s, Limit: all.Named("limit")},
			quota.Charge{Rule: s, Key: s, Limit: all.Named("x" + p.run + s)},
			quota.Charge{Rule: s, Key: p.run, Limit: algorithms.AnchoredWindow(1000, time.Hour)},
		)
	}
	var unlike []quota.Charge
	seen := map[id]bool{}
	for _, c := range ids {
		if k := idOf(&c); !seen[k] {
			seen[k] = true
			unlike = append(unlike, c)
		}
	}
	p.takeAll(0, p.charge("stored", all, 3))
	p.checkResults(p.takeAll(0, p.charge("stored", all.Named("1h"), 2), p.charge("stored", algorithms.GCRA(1000, time.Minute), 1)), true, 995, 999)
	p.checkResults(p.takeOne("stored", all, 0), true, 995)
	// Each charge has a different cost, so that the test notices if a charge uses the state of
	// another one.
	for i, c := range unlike {
		c.Cost = int64(1 + i)
		p.takeAll(0, c)
	}
	for _, c := range unlike {
		p.takeAll(0, c)
	}
	for len(unlike) > 0 {
		n := min(7, len(unlike))
		p.takeAll(0, unlike[:n]...)
		unlike = unlike[n:]
	}
}

// longNames: names of 100,000 bytes are valid, and states with names that differ in one byte are
// kept separate. A long key and its StoredKey have the same state.
func longNames(p *replay) {
	const size = 100_000
	long := p.run + strings.Repeat("x", size)
	for i, key := range []string{long, long + "y", long[:size], "y" + long, p.run, long + "\x00"} {
		name := strings.ReplaceAll(key, "\x00", " ")
		p.takeAll(0, quota.Charge{Rule: "storetest", Key: key, Limit: three, Cost: int64(i % 4)})
		p.takeAll(0, quota.Charge{Rule: name, Key: "storetest", Limit: three, Cost: int64((i + 1) % 4)})
		p.takeAll(0, quota.Charge{Rule: name, Key: key, Limit: three.Named(name), Cost: int64((i + 2) % 4)})
	}
	whole := quota.Charge{Rule: "storetest", Key: long, Limit: three}
	p.checkResults(p.takeAll(0, whole), true, 3)
	stored := whole
	stored.Key, stored.Cost = whole.StoredKey(), 2
	p.takeAll(0, stored)
	p.checkResults(p.takeAll(0, whole), true, 1)
}

// keyMemory: the caller may overwrite the memory of a key after Take.
func keyMemory(p *replay) {
	text := p.run + "key"
	b := []byte(text)
	key := unsafe.String(&b[0], len(b))
	for _, l := range []quota.Limit{three, algorithms.SlidingLog(3, time.Hour)} {
		copy(b, text)
		p.checkResults(p.takeAll(0, quota.Charge{Rule: "storetest", Key: key, Limit: l, Cost: 2}), true, 1)
		for i := range b {
			b[i] = 'z'
		}
		p.checkResults(p.takeAll(0, quota.Charge{Rule: "storetest", Key: text, Limit: l, Cost: 0}), true, 1)
		b[0] = text[0]
		p.takeAll(0, quota.Charge{Rule: "storetest", Key: strings.Clone(key), Limit: l, Cost: 0})
	}
}
