package comm

import (
	"bytes"
	"fmt"
	"path"
	"runtime"
	"strconv"
	"strings"
)

const (
	// stackBytes bounds the dump of all goroutines, and so the time that it takes.
	stackBytes = 1 << 20
	// framesShown is how many callers of a goroutine are named.
	framesShown = 4
	// streamsShown is how many streams at work are named.
	streamsShown = 2
)

// goroutineID is the number of the goroutine that calls it, as dumps name it.
func goroutineID() int {
	b := make([]byte, 64)
	id, _, _ := splitGoroutine(string(b[:runtime.Stack(b, false)]))
	return id
}

// whereabouts says what this process is doing: the goroutine that made the group
// (or main, where that one has ended), and the streams that are at work. Streams
// that wait, for a collective or for another stream, are left out.
func whereabouts(maker int) []string {
	dump := make([]byte, 64<<10)
	n := runtime.Stack(dump, true)
	for n == len(dump) && n < stackBytes {
		dump = make([]byte, 4*n)
		n = runtime.Stack(dump, true)
	}
	var main, made string
	var streams []string
	for g := range bytes.SplitSeq(dump[:n], []byte("\n\n")) {
		id, frames, ok := splitGoroutine(string(g))
		if !ok {
			continue
		}
		at := strings.Join(frames[:min(len(frames), framesShown)], " < ")
		switch {
		case id == maker:
			made = at
		case id == 1:
			main = at
		case working(frames) && len(streams) < streamsShown:
			streams = append(streams, at)
		}
	}
	if made == "" {
		made = main
	}
	if made == "" {
		return streams
	}
	return append([]string{made}, streams...)
}

// working reports whether a goroutine is a stream's, with work that is no wait.
func working(frames []string) bool {
	last := len(frames) - 1
	if last < 1 || !strings.HasPrefix(frames[last], "device.(*CPUStream).run ") {
		return false
	}
	work := frames[last-1]
	return !strings.HasPrefix(work, "comm.(*slot).execute ") && !strings.HasPrefix(work, "device.(*CPUStream).Wait.")
}

// splitGoroutine reads a goroutine of a dump: its number, and its calls as "pkg.func
// (file.go:12)", the innermost first. The runtime's own calls on top are left out.
func splitGoroutine(text string) (id int, frames []string, ok bool) {
	head, rest, ok := strings.Cut(strings.TrimSpace(text), "\n")
	head, found := strings.CutPrefix(head, "goroutine ")
	if !ok || !found {
		return 0, nil, false
	}
	number, _, _ := strings.Cut(head, " ")
	id, err := strconv.Atoi(number)
	if err != nil {
		return 0, nil, false
	}
	lines := strings.Split(rest, "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		call, place := lines[i], strings.TrimSpace(lines[i+1])
		if strings.HasPrefix(call, "created by ") {
			break
		}
		if len(frames) == 0 && ofRuntime(call) {
			continue
		}
		if args := strings.LastIndexByte(call, '('); args > 0 {
			call = call[:args]
		}
		place, _, _ = strings.Cut(place, " +")
		frames = append(frames, fmt.Sprintf("%s (%s)", path.Base(call), path.Base(place)))
	}
	return id, frames, true
}

func ofRuntime(call string) bool {
	for _, p := range [...]string{"runtime.", "internal/", "sync.", "sync/atomic.", "syscall.", "time."} {
		if strings.HasPrefix(call, p) {
			return true
		}
	}
	return false
}
