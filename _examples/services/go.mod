module github.com/seed83679106/weir/_examples/services

go 1.25.0

replace (
	github.com/seed83679106/weir => ../..
	github.com/seed83679106/weir/contrib/weirgrpc => ../../contrib/weirgrpc
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/coder/websocket v1.8.15
	github.com/go-chi/chi/v5 v5.5.0
	github.com/redis/go-redis/v9 v9.22.0
	github.com/seed83679106/weir v0.1.0
	github.com/seed83679106/weir/contrib/weirgrpc v0.1.0
	google.golang.org/grpc v1.84.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/goccy/go-yaml v1.19.2 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/net v0.57.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.40.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260706201446-f0a921348800 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)
