package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore/internal/queue"
	"github.com/seed83679106/weir/redisstore/internal/tracking"
)

const (
	retrack   = time.Second // time from the failure or loss of a connection to the next attempt
	untracked = time.Minute // time between attempts if the server cannot track keys
)

// Track implements optional.Tracker by CLIENT TRACKING, on an additional connection to each node.
// The script that evaluates a charge runs on this connection, so Redis makes the decision and
// begins to track the key at the same instant. If a separate script read the key after the refusal,
// a change in between would not be noticed.
func (s *Store) Track(changed func(key string, all bool), current func(at time.Time)) (
	takeEach func(ts []*quota.Transaction) []error) {
	switch s.rdb.(type) {
	case *redis.Client, *redis.ClusterClient, *redis.Ring:
	default:
		return nil
	}
	if s.noTracking || s.clock != nil {
		return nil
	}
	k := &tracker{store: s, changed: changed, current: current, nodes: map[*redis.Client]*trackedNode{}}
	return k.takeEach
}

type tracker struct {
	store   *Store
	changed func(key string, all bool)
	current func(at time.Time)

	mu    sync.Mutex
	nodes map[*redis.Client]*trackedNode
}

// A trackedNode is a node with the connection on which the node reports changes. The tracker's
// mutex guards the fields.
type trackedNode struct {
	conn  *tracking.Conn // may be closed; nil before the first connection
	retry time.Time      // no attempt to connect is made before this time
	err   error          // the error of the last attempt
}

// isDue reports whether the node has no connection and it is time to open one.
func (n *trackedNode) isDue() bool {
	return (n.conn == nil || n.conn.Closed()) && time.Now().After(n.retry)
}

// takeEach evaluates transactions with one charge each, and makes the nodes track the states.
func (k *tracker) takeEach(ts []*quota.Transaction) []error {
	errs := make([]error, len(ts))
	ctx, cancel := context.WithTimeout(context.Background(), 2*queue.ConnectTime)
	defer cancel()
	ctx = queue.WithBudget(ctx, 2*queue.ConnectTime) // for sendAgain
	conns := map[*tracking.Conn][]*eval{}
	for i, t := range ts {
		e := &eval{ts: []*quota.Transaction{t}, of: []int{i}}
		if errs[i] = t.Validate(); errs[i] == nil {
			errs[i] = k.store.prepare(e)
		}
		if errs[i] != nil {
			continue
		}
		conn, err := k.connection(ctx, e.key())
		switch {
		case err != nil:
			errs[i] = err
		case !conn.Track(e.key()):
			errs[i] = quota.ErrBusy
		default:
			conns[conn] = append(conns[conn], e)
		}
	}
	for conn, evals := range conns {
		k.evaluate(ctx, conn, evals, errs)
	}
	return errs
}

// evaluate runs scripts on a connection.
func (k *tracker) evaluate(ctx context.Context, conn *tracking.Conn, evals []*eval, errs []error) {
	cmds := make([]queue.Cmd, len(evals))
	for i, e := range evals {
		cmds[i] = e.command(ctx, "evalsha", e.sha)
	}
	failed := sendAgain(ctx, evals, cmds, func(cmds []queue.Cmd) error {
		var args [][]any
		for _, cmd := range cmds {
			args = append(args, cmd.Args())
		}
		replies, err := conn.Do(args...)
		for i, reply := range replies {
			if err, ok := reply.(tracking.Error); ok {
				cmds[i].SetErr(err)
			}
			cmds[i].SetVal(reply)
		}
		return err
	})
	for i, e := range evals {
		if errs[e.of[0]] = failed; failed != nil {
			conn.Forget(e.key())
			continue
		}
		if err := e.decide(k.store, cmds[i]); err != nil {
			conn.Forget(e.key())
			errs[e.of[0]] = fmt.Errorf("%w: %w", quota.ErrBusy, err)
		}
	}
}

// connection returns the tracking connection to the node that has a key, and opens it if
// necessary.
func (k *tracker) connection(ctx context.Context, key string) (*tracking.Conn, error) {
	client, ok := k.store.rdb.(*redis.Client)
	if !ok {
		var err error
		if client, err = k.store.find(ctx, key); err != nil {
			return nil, err
		}
	}
	k.mu.Lock()
	n := k.nodes[client]
	if n == nil {
		maps.DeleteFunc(k.nodes, func(_ *redis.Client, n *trackedNode) bool { return n.isDue() })
		n = &trackedNode{}
		k.nodes[client] = n
	}
	conn, err, due := n.conn, n.err, n.isDue()
	k.mu.Unlock()
	switch {
	case conn != nil && !conn.Closed():
		return conn, nil
	case !due:
		return nil, cmp.Or(err, net.ErrClosed)
	}
	conn, err = k.open(ctx, client, key)
	if errors.Is(err, errors.ErrUnsupported) {
		if what := k.store.misconfigured(err); what != "" {
			err = &unusable{what, err}
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	n.conn, n.err, n.retry = conn, err, time.Now().Add(retrack)
	if errors.Is(err, errors.ErrUnsupported) {
		n.retry = time.Now().Add(untracked)
	}
	return conn, err
}

func (k *tracker) open(ctx context.Context, client *redis.Client, key string) (*tracking.Conn, error) {
	o := client.Options()
	hello, err := helloOf(ctx, o)
	if err != nil {
		return nil, err
	}
	setup := [][]any{hello, {"client", "tracking", "on"}}
	if o.DB != 0 {
		setup = append(setup, []any{"select", o.DB})
	}
	ctx, cancel := context.WithTimeout(ctx, queue.ConnectTime)
	defer cancel()
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	if err != nil {
		return nil, err
	}
	_, tag, _ := strings.Cut(key, ":{.") // the test key must be in the same slot as key
	test := k.store.prefix + "tracking{." + tag
	return tracking.Open(ctx, conn, tracking.Options{
		Setup:  setup,
		Key:    test,
		Change: func(ctx context.Context) error { return client.Do(ctx, "psetex", test, 1000, 1).Err() },
		Changed: func(name string, all bool) {
			_, key, ok := strings.Cut(strings.TrimSuffix(name, "}"), ":{.")
			if ok || all {
				k.changed(key, all)
			}
		},
		Proven:  k.proven,
		Lost:    func() { k.current(time.Time{}) },
		Useless: func() bool { return isClosed(client) },
	})
}

// helloOf returns the command that begins a RESP3 connection.
func helloOf(ctx context.Context, o *redis.Options) ([]any, error) {
	user, password := o.Username, o.Password
	switch {
	case o.CredentialsProviderContext != nil:
		var err error
		if user, password, err = o.CredentialsProviderContext(ctx); err != nil {
			return nil, err
		}
	case o.CredentialsProvider != nil:
		user, password = o.CredentialsProvider()
	}
	if password == "" {
		return []any{"hello", 3}, nil
	}
	return []any{"hello", 3, "auth", cmp.Or(user, "default"), password}, nil
}

// proven reports a time before which all changes have been reported, on every connection that
// tracks keys.
func (k *tracker) proven() {
	k.mu.Lock()
	defer k.mu.Unlock()
	var first time.Time
	for _, n := range k.nodes {
		if n.conn == nil {
			continue
		}
		if at, ok := n.conn.Proven(); ok && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if !first.IsZero() {
		k.current(first)
	}
}

// isClosed reports whether a client is closed, without sending anything.
func isClosed(client *redis.Client) bool {
	if client.PoolStats().TotalConns > 0 {
		return false
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return errors.Is(client.Ping(ctx).Err(), redis.ErrClosed)
}
