package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

const pause = 5 * time.Millisecond // between two tries

// redsync, over one server or over several as RedLock.

type redsyncLock struct{ mutex *redsync.Mutex }

func redsyncTaker(clients ...*redis.Client) taker {
	var pools []syncredis.Pool
	for _, client := range clients {
		pools = append(pools, goredis.NewPool(client))
	}
	library := redsync.New(pools...)
	return func(name string, wait, lease time.Duration) (held, error) {
		mutex := library.NewMutex(name, redsync.WithExpiry(lease),
			redsync.WithTries(1+int(wait/pause)),
			redsync.WithRetryDelay(pause))
		within, cancel := context.WithTimeout(ctx, wait+time.Second)
		defer cancel()
		var taken *redsync.ErrTaken
		err := mutex.LockContext(within)
		if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) ||
			errors.Is(err, context.DeadlineExceeded) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		return &redsyncLock{mutex}, nil
	}
}

// What redsync says of a lock that is not the caller's any more.
func isLost(err error) bool {
	var taken *redsync.ErrTaken
	return errors.Is(err, redsync.ErrLockAlreadyExpired) ||
		errors.Is(err, redsync.ErrExtendFailed) || errors.As(err, &taken)
}

func (l *redsyncLock) give() (bool, error) {
	ok, err := l.mutex.Unlock()
	if isLost(err) {
		return false, nil
	}
	return ok, err
}

func (l *redsyncLock) renew(lease time.Duration) (bool, error) {
	redsync.WithExpiry(lease).Apply(l.mutex)
	ok, err := l.mutex.Extend()
	if isLost(err) {
		return false, nil
	}
	return ok, err
}

// redislock, which has no RedLock: over several servers it is a lock on each.

type redislockLocks []*redislock.Lock

func obtain(client *redis.Client, name string, wait, lease time.Duration) (
	*redislock.Lock, error) {
	options := &redislock.Options{}
	if wait > 0 {
		options.RetryStrategy = redislock.LimitRetry(
			redislock.LinearBackoff(pause), int(wait/pause))
	}
	within, cancel := context.WithTimeout(ctx, wait+time.Second)
	defer cancel()
	lock, err := redislock.New(client).Obtain(within, name, lease, options)
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, nil
	}
	return lock, err
}

// All or nothing; waits for the first one only.
func obtainAll(clients []*redis.Client, name string, wait,
	lease time.Duration) (redislockLocks, error) {
	var locks redislockLocks
	for _, client := range clients {
		lock, err := obtain(client, name, wait, lease)
		if lock == nil || err != nil {
			locks.give()
			return nil, err
		}
		locks, wait = append(locks, lock), 0
	}
	return locks, nil
}

func redislockTaker(clients ...*redis.Client) taker {
	return func(name string, wait, lease time.Duration) (held, error) {
		for end := time.Now().Add(wait); ; time.Sleep(pause) {
			locks, err := obtainAll(clients, name, time.Until(end), lease)
			if locks != nil {
				return locks, nil
			} else if err != nil || time.Now().After(end) {
				return nil, err
			}
		}
	}
}

// Calls fn for each; false if one was not the caller's any more.
func (all redislockLocks) each(fn func(*redislock.Lock) error) (bool, error) {
	ours := true
	for _, lock := range all {
		err := fn(lock)
		if errors.Is(err, redislock.ErrLockNotHeld) ||
			errors.Is(err, redislock.ErrNotObtained) {
			ours = false
		} else if err != nil {
			return false, err
		}
	}
	return ours, nil
}

func (all redislockLocks) give() (bool, error) {
	return all.each(func(lock *redislock.Lock) error {
		return lock.Release(ctx)
	})
}

func (all redislockLocks) renew(lease time.Duration) (bool, error) {
	return all.each(func(lock *redislock.Lock) error {
		return lock.Refresh(ctx, lease, nil)
	})
}
