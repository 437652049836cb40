// Package peers imports the rate limiters that docs/migration.md describes. Its tests check
// that the code for them on that page compiles, and that the claims about them are true. It
// is a module of its own, so that Weir requires none of them.
package peers

import (
	_ "github.com/didip/tollbooth/v7"
	_ "github.com/didip/tollbooth/v7/limiter"
	_ "github.com/go-chi/httprate"
	_ "github.com/go-redis/redis_rate/v10"
	_ "github.com/redis/go-redis/v9"
	_ "github.com/seed83679106/weir"
	_ "github.com/seed83679106/weir/algorithms"
	_ "github.com/seed83679106/weir/memstore"
	_ "github.com/seed83679106/weir/redisstore"
	_ "github.com/throttled/throttled/v2"
	_ "github.com/throttled/throttled/v2/store/memstore"
	_ "github.com/ulule/limiter/v3"
	_ "github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	_ "github.com/ulule/limiter/v3/drivers/store/memory"
)
