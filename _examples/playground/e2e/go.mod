module github.com/seed83679106/weir/_examples/playground/e2e

go 1.25.0

require (
	github.com/seed83679106/weir v0.1.0
	github.com/seed83679106/weir/_examples v0.1.0
)

replace (
	github.com/seed83679106/weir => ../../..
	github.com/seed83679106/weir/_examples => ../..
	github.com/seed83679106/weir/ops/weirprom => ../../../ops/weirprom
)

require (
	github.com/chromedp/cdproto v0.159.0
	github.com/chromedp/chromedp v0.22.0
	github.com/redis/go-redis/v9 v9.22.0
)

require (
	github.com/andybalholm/brotli v1.3.0 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
	github.com/goccy/go-yaml v1.19.2 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)
