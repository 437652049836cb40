package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The keys of refusals are environment variables that only Envoy's rate limit service reads; the
// values describe what replaces them in weir. The command serve does not start if one of these
// variables is set, because the decisions of weir would then differ from those of that service.
var refusals = map[string]string{
	"BACKEND_TYPE":                            "counts are in memory or in Redis, not in Memcached",
	"CACHE_KEY_PREFIX":                        "use -redis-prefix",
	"CONFIG_TYPE":                             "use -envoy-xds, with the value of CONFIG_GRPC_XDS_SERVER_URL, and -envoy-xds-node",
	"EXPIRATION_JITTER_MAX_SECONDS":           "remove it: counts expire with their windows, and Redis deletes expired keys a few at a time",
	"EXTRA_TAGS":                              "remove it: Prometheus adds labels to what it scrapes",
	"FORCE_START_WITHOUT_INITIAL_CONFIG":      "remove it: with -envoy-xds, weir starts without limits, and is ready when it has some",
	"GRPC_CLIENT_TLS_CACERT":                  "use -envoy-client-ca",
	"GRPC_CLIENT_TLS_SAN":                     "use -envoy-client-name",
	"GRPC_MAX_CONNECTION_AGE":                 "use -envoy-connection-age",
	"GRPC_MAX_CONNECTION_AGE_GRACE":           "remove it: it is a minute",
	"GRPC_SERVER_TLS_CERT":                    "use -tls-cert",
	"GRPC_SERVER_TLS_KEY":                     "use -tls-key",
	"GRPC_SERVER_USE_TLS":                     "use -envoy-rls with an address that begins with tls://",
	"GRPC_UDS":                                "use -envoy-rls with a TCP address",
	"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "remove it: weir is ready only with limits, and keeps the old ones if new ones have an error",
	"LIMIT_LIMIT_HEADER":                      "use -envoy-header-names",
	"LIMIT_REMAINING_HEADER":                  "use -envoy-header-names",
	"LIMIT_RESET_HEADER":                      "use -envoy-header-names",
	"LIMIT_RESPONSE_HEADERS_ENABLED":          "use -envoy-headers",
	"LOCAL_CACHE_SIZE_IN_BYTES":               "use -envoy-over, a number of counts",
	"MERGE_DOMAIN_CONFIG":                     "use -envoy-merge-domains",
	"NEAR_LIMIT_RATIO":                        "use -envoy-near",
	"PROMETHEUS_MAPPER_YAML":                  "remove it: metrics have the names of that service's default mapping",
	"QUOTA_MODE":                              "use -envoy-quota",
	"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION":    "remove it: /readyz of -auth-addr checks Redis",
	"REDIS_PERSECOND":                         "remove it: one Redis has all counts, and a cluster divides them among its nodes",
	"RESPONSE_DYNAMIC_METADATA":               "use -envoy-metadata",
	"RUNTIME_ROOT":                            "use -envoy-config with the whole path",
	"RUNTIME_SUBDIRECTORY":                    "use -envoy-config with the whole path",
	"SHADOW_MODE":                             "use -envoy-shadow",
	"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": "remove it: each descriptor counts by itself; rules of -limits spend all or nothing",
	"USE_DOG_STATSD":                          "remove it: metrics are for Prometheus, at /metrics of -auth-addr",
	"USE_STATSD":                              "remove it: metrics are for Prometheus, at /metrics of -auth-addr",
}

// neglected lists variables that Envoy's rate limit service reads, but other programs read as well.
// Each causes a warning.
var neglected = map[string]string{
	"GRPC_PORT":           "use -envoy-rls",
	"REDIS_AUTH":          "use -redis-password-file",
	"REDIS_SENTINEL_AUTH": "use -redis-sentinel-password-file",
	"REDIS_TLS":           "use -redis-tls",
	"REDIS_TYPE":          "use -redis-is-cluster-mode or -redis-master-name",
	"TRACING_ENABLED":     "weir serve makes no spans; Envoy's own have the time of each call",
}

// envoySettings finds the settings of Envoy's rate limit service in the environment, a list of
// texts such as "QUOTA_MODE=true". It ignores settings that request what weir does anyway.
func envoySettings(environ []string) (warnings []string, err error) {
	set := map[string]bool{}
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		switch strings.ToLower(value) {
		case "", "0", "false", "file", "redis": // BACKEND_TYPE=redis
		default:
			set[name] = !strings.Contains(value, "://") // Kubernetes sets GRPC_PORT=tcp://… for a service
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(set)) {
		const text = "%s is a setting of Envoy's rate limit service, which weir does not read: %s"
		if why := refusals[name]; why != "" {
			errs = append(errs, fmt.Errorf(text, name, why))
		} else if why := neglected[name]; why != "" && set[name] {
			warnings = append(warnings, fmt.Sprintf(text, name, why))
		}
	}
	return warnings, errors.Join(errs...)
}
