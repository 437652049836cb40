package memstore

import "github.com/seed83679106/weir/internal/remade"

// Many is the function many, for the package memstore_test.
func Many() int { return many() }

// ForgetMade makes New warn again of handlers that make stores.
func ForgetMade() { handlerMade = remade.Count{} }
