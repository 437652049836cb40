package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// compile is the role of a process that compiles a package with all that it imports, again and again,
// until its input ends.
func compile([]string) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); cancel() }()
	for ctx.Err() == nil {
		c := exec.CommandContext(ctx, "go", "build", "-a", "net/http")
		c.Env = append(os.Environ(), "GOCACHE="+dir)
		if err := c.Run(); err != nil && ctx.Err() == nil {
			log.Fatal("load: compile: ", err)
		}
	}
}

// busy measures the crowd next to three programs that compile, by rounds in which all stores take turns,
// because the load changes all the time.
func busy(plain, _ string) {
	const keys, d, memory = 100, time.Second, "memory"
	kinds, sizes, rounds := []string{memory, poolName, "bare", "stack"}, []int{64, 1000, 4000}, 8
	if *quick {
		rounds = 2
	}
	for range 3 {
		defer start("compile").end()
	}
	fronts := map[string]*front{}
	for _, kind := range kinds {
		f := newFront(plain, kind, 0)
		defer f.end()
		f.drive(64, keys, 0, d)
		fronts[kind] = f
	}
	type cell struct {
		decided, part, ofMemory    []float64
		answers, decisions, passed int // of rounds in which no PING was late
		late                       int // rounds in which one was
	}
	cells := map[string]*cell{}
	for range rounds {
		plateau, parts := map[string]float64{}, map[string]float64{}
		for _, n := range sizes {
			for _, kind := range kinds {
				id := fmt.Sprint(kind, " | ", n)
				if cells[id] == nil {
					cells[id] = &cell{}
				}
				c, f := cells[id], fronts[kind]
				pings := start("ping", f.redis)
				a, fallback := f.drive(n, keys, 0, d)
				pings.in.Close()
				late := pings.line()
				_ = pings.cmd.Wait()
				got := a.Decided - fallback
				if n == sizes[0] {
					plateau[kind] = float64(got)
				}
				part := float64(got) / max(1, plateau[kind])
				if kind == memory {
					parts[fmt.Sprint(n)] = part
				}
				c.decided, c.part = append(c.decided, float64(got)/d.Seconds()), append(c.part, part)
				c.ofMemory = append(c.ofMemory, part/parts[fmt.Sprint(n)])
				if !strings.HasPrefix(late, "0 ") {
					c.late++
					continue
				}
				c.answers, c.decisions, c.passed = c.answers+a.all(), c.decisions+got, c.passed+a.Undecided+a.Other
			}
		}
	}
	median := func(s []float64) float64 { slices.Sort(s); return s[len(s)/2] }
	fmt.Printf("As in the crowd, on loopback, next to three programs that compile; medians of %d rounds of %v, in which the stores take turns. "+
		"Decided: a second; as a part of what 64 connections get; and that part divided by the part of a store in memory. "+
		"Rounds in which a PING of another process took longer than the Timeout are counted, and of the others, which part of the requests "+
		"the store decided, and how many were let through. %s waits for 10 s.\n", rounds, d, poolName)
	fmt.Println("| store | connections | decided | part | ÷ memory | late PINGs | decided in other rounds | let through |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, kind := range kinds {
		for _, n := range sizes {
			id := fmt.Sprint(kind, " | ", n)
			c := cells[id]
			others := "-"
			if c.answers > 0 {
				others = fmt.Sprintf("%.3f", float64(c.decisions)/float64(c.answers))
			}
			fmt.Printf("| %s | %.0f | %.2f | %.2f | %d of %d | %s | %d |\n", id, median(c.decided), median(c.part), median(c.ofMemory), c.late, rounds, others, c.passed)
		}
	}
}
