// The side of redsync, or of bsm/redislock, in the interop specs. It reads
// commands from a list in Redis and answers into another;
// spec/interop/peer.lua gives them and says what they are.
//
//	peer redsync|redislock NAME LEASE ADDRESS MEMBER...
//
// NAME is that of the lists, LEASE the one of who names none, in milliseconds,
// ADDRESS the server of everything, and MEMBERs are the servers of RedLocks.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

// A lock that one of the two libraries has given.
type held interface {
	give() (bool, error)
	renew(lease time.Duration) (bool, error)
}

// Takes the lock `name`; nil if it was not free within `wait`.
type taker func(name string, wait, lease time.Duration) (held, error)

type peer struct {
	name  string
	lease time.Duration
	redis *redis.Client
	kinds map[string]taker
}

// What one task has, by kind and name.
type task struct {
	*peer
	has map[string]held
}

func connect(address string) *redis.Client {
	options, err := redis.ParseURL(address)
	if err != nil {
		log.Fatal(err)
	}
	options.MaxRetries, options.DialerRetries = -1, 1
	options.DialTimeout = time.Second
	return redis.NewClient(options)
}

func main() {
	library, name, address := os.Args[1], os.Args[2], os.Args[4]
	p := &peer{name: name, lease: duration(os.Args[3]), redis: connect(address)}
	var members []*redis.Client
	for _, member := range os.Args[5:] {
		members = append(members, connect(member))
	}
	switch library {
	case "redsync":
		p.kinds = map[string]taker{
			"simple":     redsyncTaker(p.redis),
			"red_simple": redsyncTaker(members...),
		}
	case "redislock":
		p.kinds = map[string]taker{
			"simple":     redislockTaker(p.redis),
			"red_simple": redislockTaker(members[:(len(members)+1)/2]...),
		}
	}
	fmt.Println("ready")
	p.serve()
}

func (p *peer) serve() {
	tasks := map[string]chan []string{}
	for {
		reply, err := p.redis.BLPop(ctx, 0, p.name+":commands").Result()
		if err != nil {
			log.Fatal(err)
		}
		words := strings.Fields(reply[1])
		lines := tasks[words[1]]
		if lines == nil {
			lines = make(chan []string, 1000)
			tasks[words[1]] = lines
			t := &task{peer: p, has: map[string]held{}}
			go t.work(lines)
		}
		lines <- words
	}
}

func (t *task) work(lines chan []string) {
	for words := range lines {
		answer, err := t.act(words[2], words[3], words[4], words[5:])
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		err = t.redis.RPush(ctx, t.name+":answers", words[0]+" "+answer).Err()
		if err != nil {
			log.Fatal(err)
		}
	}
}

// Milliseconds; -1 stays negative.
func duration(word string) time.Duration {
	ms, err := strconv.Atoi(word)
	if err != nil {
		log.Fatal(err)
	}
	return time.Duration(ms) * time.Millisecond
}

func given(ok bool, err error) (string, error) {
	if ok {
		return "ok", err
	}
	return "no", err
}

func (t *task) act(verb, kind, name string, more []string) (string, error) {
	switch verb {
	case "take":
		return given(t.take(kind, name, duration(more[0]), duration(more[1])))
	case "give":
		return given(t.give(kind, name))
	case "renew":
		lock := t.has[kind+name]
		if lock == nil {
			return "no", nil
		}
		return given(lock.renew(duration(more[1])))
	case "contend":
		rounds, err := strconv.Atoi(more[1])
		if err != nil {
			return "", err
		}
		return t.contend(kind, name, more[0], rounds)
	}
	return "", errors.New("no such verb: " + verb)
}

func (t *task) take(kind, name string, wait, lease time.Duration) (bool,
	error) {
	if wait < 0 {
		wait = time.Hour
	}
	if lease < 0 {
		lease = t.lease
	}
	lock, err := t.kinds[kind](name, wait, lease)
	if lock == nil || err != nil {
		return false, err
	}
	t.has[kind+name] = lock
	return true, nil
}

func (t *task) give(kind, name string) (bool, error) {
	lock := t.has[kind+name]
	if lock == nil {
		return false, nil
	}
	delete(t.has, kind+name)
	return lock.give()
}

func (t *task) contend(kind, name, key string, rounds int) (string, error) {
	switches := 0
	for i := 0; i < rounds; i++ {
		if ok, err := t.take(kind, name, -1, -1); !ok {
			return "", fmt.Errorf("not taken in round %d: %w", i, err)
		}
		n, err := t.redis.Get(ctx, key).Int()
		if err != nil {
			return "", err
		}
		t.redis.Set(ctx, key, n+1, 0)
		t.redis.Incr(ctx, key+":sum")
		if t.redis.GetSet(ctx, key+":last", t.name).Val() != t.name {
			switches++
		}
		if ok, err := t.give(kind, name); !ok {
			return "", fmt.Errorf("lost in round %d: %w", i, err)
		}
		t.redis.Get(ctx, key) // others get a chance
	}
	return fmt.Sprintf("ok %d 0", switches), nil
}
