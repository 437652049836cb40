package overrides

// Keeper returns the Keeper of l.
func (l *Live) Keeper() Keeper { return l.o.Keeper }
