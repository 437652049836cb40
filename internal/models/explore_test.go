// Package models_test explores small models of what several processes do at once, in every
// order. A model is a state that can be compared, and what may happen next. Each model is
// explored twice: as the code does it, which must hold, and with a fault, which must be found.
package models_test

import (
	"fmt"
	"strings"
	"testing"
)

// A model says what may happen in a state. then is called with each event and the state after.
type model[S comparable] struct {
	start   S
	next    func(s S, then func(event string, after S))
	invalid func(s S) string // what is wrong with a state, or ""
}

// explore visits every state that can be reached, nearest first, and returns how many there
// are. trace has the events that lead to an invalid state, and is empty if there is none.
func (m model[S]) explore() (states int, trace string) {
	type step struct {
		from  S
		event string
	}
	came := map[S]step{m.start: {}}
	for queue := []S{m.start}; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		if wrong := m.invalid(s); wrong != "" {
			events := []string{wrong}
			for ; s != m.start; s = came[s].from {
				events = append([]string{came[s].event}, events...)
			}
			return len(came), strings.Join(events, "; ")
		}
		m.next(s, func(event string, after S) {
			if _, seen := came[after]; !seen {
				came[after] = step{s, event}
				queue = append(queue, after)
			}
		})
	}
	return len(came), ""
}

// holds explores a model as it is, and with each fault.
func holds[S comparable](t *testing.T, atLeast int, of func(fault string) model[S], faults ...string) {
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

func name(who int, format string, args ...any) string {
	return fmt.Sprintf("%c ", 'A'+who) + fmt.Sprintf(format, args...)
}
