package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// A lock as one task uses it: take returns what gives it back.
type take func() (give func())

const lease = 30 * time.Second

var background = context.Background()

// Each library as its documentation shows it. nil: it has no such kind.

func redsyncLocks(kind string, addresses []string) func(string) take {
	if kind != "red" && kind != "lock" {
		return nil
	}
	var pools []syncredis.Pool
	for _, address := range addresses {
		pools = append(pools, goredis.NewPool(
			redis.NewClient(&redis.Options{Addr: address})))
	}
	library := redsync.New(pools...)
	return func(name string) take {
		mutex := library.NewMutex(name, redsync.WithExpiry(lease),
			redsync.WithTries(1<<30))
		return func() func() {
			check(mutex.Lock())
			return func() {
				_, err := mutex.Unlock()
				check(err)
			}
		}
	}
}

func redislockLocks(kind string, addresses []string) func(string) take {
	if kind != "lock" {
		return nil
	}
	library := redislock.New(redis.NewClient(
		&redis.Options{Addr: addresses[0]}))
	return func(name string) take {
		return func() func() {
			// The back-off of the example in its README.
			lock, err := library.Obtain(background, name, lease,
				&redislock.Options{RetryStrategy: redislock.LinearBackoff(
					100 * time.Millisecond)})
			check(err)
			return func() { check(lock.Release(background)) }
		}
	}
}

var libraries = map[string]func(string, []string) func(string) take{
	"redsync":   redsyncLocks,
	"redislock": redislockLocks,
}
