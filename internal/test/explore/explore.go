// Package explore explores small models of what several processes do at once, in every order. A
// model is a state that can be compared, and what may happen next. Each model is explored as the code
// does it, which must hold, and with one fault after the other, each of which must be found. The
// models are in the tests of the packages that they model.
package explore

import (
	"fmt"
	"strings"
	"testing"
)

// A Model says what may happen in a state. The function then is called with each event and the state after.
type Model[S comparable] struct {
	Start   S
	Next    func(s S, then func(event string, after S))
	Invalid func(s S) string // what is wrong with a state, or ""
}

// explore visits every state that can be reached, nearest first, and returns how many there
// are. trace has the events that lead to an invalid state, and is empty if there is none.
func (m Model[S]) explore() (states int, trace string) {
	type step struct {
		from  S
		event string
	}
	came := map[S]step{m.Start: {}}
	for queue := []S{m.Start}; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		if wrong := m.Invalid(s); wrong != "" {
			events := []string{wrong}
			for ; s != m.Start; s = came[s].from {
				events = append([]string{came[s].event}, events...)
			}
			return len(came), strings.Join(events, "; ")
		}
		m.Next(s, func(event string, after S) {
			if _, seen := came[after]; !seen {
				came[after] = step{s, event}
				queue = append(queue, after)
			}
		})
	}
	return len(came), ""
}

// Holds explores a model as it is, and with each fault.
func Holds[S comparable](t *testing.T, atLeast int, of func(fault string) Model[S], faults ...string) {
	t.Helper()
	states, trace := of("").explore()
	if trace != "" {
		t.Errorf("after %d states: %s", states, trace)
	}
	if states < atLeast {
		t.Errorf("only %d states: the model does less than it should", states)
	}
	t.Logf("%d states", states)
	for _, fault := range faults {
		if states, trace = of(fault).explore(); trace == "" {
			t.Errorf("%s: not found in %d states", fault, states)
		}
		t.Logf("%s: %s", fault, trace)
	}
}

// Name returns the name of an event of one of several actors.
func Name(who int, format string, args ...any) string {
	return fmt.Sprintf("%c ", 'A'+who) + fmt.Sprintf(format, args...)
}
