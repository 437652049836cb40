package overrides

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"
)

// memory is the Keeper of one process.
type memory struct {
	mu      sync.Mutex
	kept    map[string]string
	changes int
	begin   time.Time // with a monotonic reading, so that steps of the clock change nothing
}

func (m *memory) now() time.Time { return m.begin.Add(time.Since(m.begin)) }

func (m *memory) LoadOverrides(ctx context.Context, version string) (map[string]string, string, time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	newest := strconv.Itoa(m.changes)
	if newest == version {
		return nil, newest, m.now(), nil
	}
	return maps.Clone(m.kept), newest, m.now(), nil
}

func (m *memory) SaveOverride(ctx context.Context, name, text string, d time.Duration, most int) (full bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	m.changes++
	delete(m.kept, name)
	if text == "" {
		return false, nil
	}
	if len(m.kept) >= most {
		maps.DeleteFunc(m.kept, func(_, text string) bool {
			micros, _, _ := strings.Cut(text, " ")
			end, _ := strconv.ParseInt(micros, 10, 64)
			return end != 0 && end <= now.UnixMicro()
		})
		if len(m.kept) >= most {
			return true, nil
		}
	}
	end := int64(0)
	if d > 0 {
		end = now.Add(d).UnixMicro()
	}
	m.kept[name] = strconv.FormatInt(end, 10) + " " + text
	return false, nil
}
