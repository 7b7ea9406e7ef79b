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

// redislock.

type redislockLock struct{ lock *redislock.Lock }

func redislockTaker(client *redis.Client) taker {
	library := redislock.New(client)
	return func(name string, wait, lease time.Duration) (held, error) {
		options := &redislock.Options{}
		if wait > 0 {
			options.RetryStrategy = redislock.LimitRetry(
				redislock.LinearBackoff(pause), int(wait/pause))
		}
		within, cancel := context.WithTimeout(ctx, wait+time.Second)
		defer cancel()
		lock, err := library.Obtain(within, name, lease, options)
		if errors.Is(err, redislock.ErrNotObtained) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		return &redislockLock{lock}, nil
	}
}

func (l *redislockLock) give() (bool, error) {
	err := l.lock.Release(ctx)
	if errors.Is(err, redislock.ErrLockNotHeld) {
		return false, nil
	}
	return err == nil, err
}

func (l *redislockLock) renew(lease time.Duration) (bool, error) {
	err := l.lock.Refresh(ctx, lease, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return false, nil
	}
	return err == nil, err
}
