module github.com/seed83679106/weir/_examples

go 1.25.0

require (
	github.com/seed83679106/weir v0.1.0
	github.com/seed83679106/weir/contrib/weirchi v0.1.0
)

replace (
	github.com/seed83679106/weir => ../
	github.com/seed83679106/weir/contrib/weirchi => ../contrib/weirchi
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/andybalholm/brotli v1.3.0
	github.com/go-chi/chi/v5 v5.5.0
	github.com/redis/go-redis/v9 v9.22.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/goccy/go-yaml v1.19.2 // indirect
	github.com/stretchr/testify v1.11.1 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
