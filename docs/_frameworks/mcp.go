package frameworks

import (
	"context"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/jsonrpc"
)

// MCP returns an MCP server with a tool that each user may call twice an hour. A second quota
// covers all requests of a user, whatever their method.
func MCP(store weir.Store, user weir.KeyFunc) (http.Handler, error) {
	const max = 64 << 10 // the most bytes of a body that are read
	limiter, err := weir.New(store, weir.Options{
		OnLimited: jsonrpc.OnLimited(max, jsonrpc.CodeLimited),
		Rules: []weir.Rule{
			{Name: "tool", Key: weir.Join(user, weir.ByJSON("params.name", max)), Cost: jsonrpc.Cost(max), Limits: []weir.Limit{algorithms.SlidingLog(2, time.Hour)}},
			{Name: "mcp", Key: user, Cost: jsonrpc.Cost(max), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)}},
		},
	})
	if err != nil {
		return nil, err
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "library", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "search", Description: "finds books"}, search)
	return limiter.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)), nil
}

type query struct {
	Title string `json:"title"`
}

func search(_ context.Context, _ *mcp.CallToolRequest, q query) (*mcp.CallToolResult, any, error) {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "found " + q.Title}}}, nil, nil
}
