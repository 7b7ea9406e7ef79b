// The driver of the libraries in Go; spec/bench/peers/run says what it is told
// and prints.
//
//	peer LIBRARY PATTERN KIND TASKS SECONDS WARM_UP FILE ADDRESS...
package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	held = 5 * time.Millisecond
	rest = time.Millisecond
)

var (
	mutex   sync.Mutex
	samples []float64 // microseconds
	total   int       // with those of the warm-up
	stamp   *os.File  // when the lock was released, 0 since it is taken
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) float64 {
	value, err := strconv.ParseFloat(text, 64)
	check(err)
	return value
}

// Seconds of the system's clock, the same in all processes.
func now() float64 {
	var t unix.Timespec
	check(unix.ClockGettime(unix.CLOCK_MONOTONIC, &t))
	return float64(t.Sec) + float64(t.Nsec)/1e9
}

func cpu() float64 {
	var t unix.Timespec
	check(unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t))
	return float64(t.Sec) + float64(t.Nsec)/1e9
}

func sample(begun, seconds float64) {
	mutex.Lock()
	total++
	if now() >= begun {
		samples = append(samples, seconds*1e6)
	}
	mutex.Unlock()
}

func put(at float64) {
	_, err := stamp.WriteAt([]byte(fmt.Sprintf("%020.9f", at)), 0)
	check(err)
}

func get() float64 {
	var text [20]byte
	if n, _ := stamp.ReadAt(text[:], 0); n < 20 {
		return 0
	}
	return number(string(text[:]))
}

func passOn(lock take, begun float64) {
	for {
		give := lock()
		at, released := now(), get()
		if released > 0 {
			sample(begun, at-released)
		}
		put(0)
		time.Sleep(held)
		put(now())
		mine := get()
		give()
		for mine == get() {
			time.Sleep(rest)
		}
	}
}

func cycle(lock take, begun float64) {
	for {
		at := now()
		lock()()
		sample(begun, now()-at)
	}
}

func resident() int {
	text, err := os.ReadFile("/proc/self/statm")
	check(err)
	return int(number(strings.Fields(string(text))[1])) * 4
}

func report(count int, seconds, used float64) {
	fmt.Printf(`{"count":%d,"total":%d,"seconds":%.6f,"cpu_s":%.6f,"rss_kb":%d`,
		count, total, seconds, used, resident())
	if len(samples) > 0 {
		slices.Sort(samples)
		last := float64(len(samples) - 1)
		fmt.Printf(`,"p50_us":%.1f,"p99_us":%.1f`, samples[int(last*0.5)],
			samples[int(last*0.99)])
	}
	fmt.Println("}")
	os.Exit(0)
}

func main() {
	pattern, kind, tasks := os.Args[2], os.Args[3], int(number(os.Args[4]))
	seconds, warm := number(os.Args[5]), number(os.Args[6])
	locks := libraries[os.Args[1]](kind, os.Args[8:])
	if locks == nil || pattern == "readers" || pattern == "hold" {
		os.Exit(3)
	}
	duration := time.Duration(seconds * 1e9)
	var err error
	if os.Args[7] != "" {
		stamp, err = os.OpenFile(os.Args[7], os.O_RDWR, 0)
		check(err)
	}
	begun := now() + warm
	if pattern == "start" {
		locks("bench")()()
		return
	}
	for i := range tasks {
		switch pattern {
		case "cycles":
			go cycle(locks(fmt.Sprintf("bench:%d", i)), begun)
		case "tight":
			go cycle(locks("bench"), begun)
		case "handover":
			go passOn(locks("bench"), begun)
		}
	}
	time.Sleep(time.Duration(warm * 1e9))
	used, at := cpu(), now()
	time.Sleep(duration)
	used, at = cpu()-used, now()-at
	mutex.Lock()
	report(len(samples), at, used)
}
