// This module has the tests that need modules which users of Weir should not have to
// require: miniredis, a Redis in the test's process whose clock can be set; a validator of
// JSON Schema; the Prometheus client; and clients of gRPC and Connect.
module github.com/seed83679106/weir/internal/xtest

go 1.25.0

require github.com/seed83679106/weir v0.1.0

require (
	github.com/seed83679106/weir/contrib/weirchi v0.1.0
	github.com/seed83679106/weir/contrib/weirgrpc v0.1.0
	github.com/seed83679106/weir/ops/weirotel v0.1.0
	github.com/seed83679106/weir/ops/weirprom v0.1.0
)

replace (
	github.com/seed83679106/weir => ../../
	github.com/seed83679106/weir/contrib/weirchi => ../../contrib/weirchi
	github.com/seed83679106/weir/contrib/weirgrpc => ../../contrib/weirgrpc
	github.com/seed83679106/weir/ops/weirotel => ../../ops/weirotel
	github.com/seed83679106/weir/ops/weirprom => ../../ops/weirprom
)

require (
	connectrpc.com/connect v1.20.0
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/go-chi/chi/v5 v5.5.0
	github.com/goccy/go-yaml v1.19.2
	github.com/prometheus/client_golang v1.23.2
	github.com/redis/go-redis/extra/redisotel/v9 v9.22.0
	github.com/redis/go-redis/extra/redisprometheus/v9 v9.22.0
	github.com/redis/go-redis/v9 v9.22.0
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
	go.opentelemetry.io/otel v1.44.0
	go.opentelemetry.io/otel/sdk v1.44.0
	go.opentelemetry.io/otel/trace v1.44.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260706201446-f0a921348800
	google.golang.org/grpc v1.84.0
	google.golang.org/protobuf v1.36.11
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/client_model v0.6.2 // indirect
	github.com/prometheus/common v0.66.1 // indirect
	github.com/prometheus/procfs v0.16.1 // indirect
	github.com/redis/go-redis/extra/rediscmd/v9 v9.22.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/otel/metric v1.44.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	go.yaml.in/yaml/v2 v2.4.2 // indirect
	golang.org/x/net v0.57.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.40.0 // indirect
)
