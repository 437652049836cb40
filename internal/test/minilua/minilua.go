// Package minilua adds to miniredis the Lua library struct. Every server that package
// redisstore supports has it, and miniredis does not.
//
//	server := miniredis.RunT(t)
//	server.Server().SetPreHook(minilua.Add)
package minilua

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"sync"
)

//go:embed libraries.lua
var libraries string

var hashes sync.Map // the hash of a script → the hash of the same script with the library

// Add is a hook of miniredis, whose type of connections is Conn. It inserts the library before
// each script, which clients know by the hash of the script alone. A Restart of the server removes
// the hook.
func Add[Conn any](_ *Conn, cmd string, args ...string) bool {
	if len(args) > 0 {
		switch cmd {
		case "EVAL":
			long := libraries + args[0]
			hashes.Store(hash(args[0]), hash(long))
			args[0] = long
		case "EVALSHA":
			if long, ok := hashes.Load(args[0]); ok {
				args[0] = long.(string)
			}
		}
	}
	return false // miniredis runs the command
}

func hash(script string) string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}
