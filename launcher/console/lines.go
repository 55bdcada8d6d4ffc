package console

import "bytes"

// maxLine is the longest line that the console keeps whole, in bytes. A longer
// one is shown in pieces of this size; log files have every byte as written.
const maxLine = 1 << 20

// Lines is one stream of a worker on its way to the console: it cuts chunks
// into lines and prefixes them, so that lines of several workers never mix. A
// lone carriage return ends a line too, or a progress bar that redraws itself
// would stay unseen until it ends. It is used by one goroutine.
type Lines struct {
	c      *Console
	stderr bool
	prefix string
	rest   []byte // the line that has not ended yet
	cr     bool   // the last byte was a carriage return that ended a line
	out    []byte // reused
}

// Write shows the lines that end in b and keeps the rest for the next call. It
// takes all of b and never fails: an error of the console ends the job through
// Console.Broken.
func (l *Lines) Write(b []byte) (int, error) {
	n := len(b)
	if l.prefix == "" {
		l.c.raw(l.stderr, b)
		return n, nil
	}
	l.out = l.out[:0]
	for len(b) > 0 {
		if l.cr {
			l.cr = false
			if b[0] == '\n' {
				b = b[1:]
				continue
			}
		}
		end := bytes.IndexAny(b, "\r\n")
		if end < 0 {
			l.rest = append(l.rest, b...)
			for len(l.rest) >= maxLine {
				l.emit(l.rest[:maxLine])
				l.rest = append(l.rest[:0], l.rest[maxLine:]...)
			}
			break
		}
		l.cr = b[end] == '\r'
		if len(l.rest) > 0 {
			l.rest = append(l.rest, b[:end]...)
			l.emit(l.rest)
			l.rest = l.rest[:0]
		} else {
			l.emit(b[:end])
		}
		b = b[end+1:]
	}
	l.c.raw(l.stderr, l.out)
	return n, nil
}

// Flush shows the last line where it had no newline at its end.
func (l *Lines) Flush() {
	if len(l.rest) == 0 {
		return
	}
	l.out = l.out[:0]
	l.emit(l.rest)
	l.rest = l.rest[:0]
	l.c.raw(l.stderr, l.out)
}

func (l *Lines) emit(line []byte) {
	l.out = append(l.out, l.prefix...)
	l.out = append(l.out, line...)
	l.out = append(l.out, '\n')
}
