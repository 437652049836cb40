// Package pages imports what code in pages imports, so that this module requires it.
// TestGo and TestPackageComments in docs compile that code in this module.
package pages

import (
	_ "github.com/go-chi/chi/v5/middleware"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/redis/go-redis/extra/redisotel/v9"
	_ "github.com/redis/go-redis/extra/redisprometheus/v9"
	_ "go.opentelemetry.io/otel"
	_ "google.golang.org/grpc/credentials"
	_ "google.golang.org/protobuf/proto"

	_ "github.com/seed83679106/weir/contrib/weirchi"
	_ "github.com/seed83679106/weir/contrib/weirgrpc"
	_ "github.com/seed83679106/weir/ops/weirotel"
	_ "github.com/seed83679106/weir/ops/weirprom"
)
