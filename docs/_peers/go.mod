module github.com/seed83679106/weir/docs/peers

go 1.25.0

replace (
	github.com/seed83679106/weir => ../..
	github.com/seed83679106/weir/contrib/weirchi => ../../contrib/weirchi
)

require (
	github.com/didip/tollbooth/v7 v7.0.2
	github.com/didip/tollbooth/v8 v8.0.1
	github.com/go-chi/chi/v5 v5.5.0
	github.com/go-chi/httprate v0.16.1
	github.com/go-redis/redis_rate/v10 v10.0.1
	github.com/redis/go-redis/v9 v9.22.0
	github.com/seed83679106/weir v0.1.0
	github.com/seed83679106/weir/contrib/weirchi v0.1.0
	github.com/throttled/throttled/v2 v2.15.0
	github.com/ulule/limiter/v3 v3.11.2
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/go-pkgz/expirable-cache/v3 v3.0.0 // indirect
	github.com/hashicorp/golang-lru v0.5.4 // indirect
	github.com/klauspost/cpuid/v2 v2.2.10 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/zeebo/xxh3 v1.1.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
