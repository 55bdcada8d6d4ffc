package config

import (
	"fmt"
	"sort"
	"strings"
)

// An Error is one thing that is wrong with a job's configuration.
type Error struct {
	// Where is file:line:column, or the --set flag that the value came from.
	Where string
	// Key is the path of the key, such as train.lr; empty for a file that cannot
	// be read at all.
	Key string
	// Msg says what is wrong, with the offending value, and what to do.
	Msg string

	line, column int // for sorting; flags have line 0
}

func (e *Error) Error() string {
	if e.Key == "" {
		return e.Where + ": " + e.Msg
	}
	return e.Where + ": " + e.Key + ": " + e.Msg
}

// Errors is everything that is wrong with a job's configuration, in the order of
// the file; flags come last. Error gives one a line.
type Errors []*Error

func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

func (es Errors) sorted() Errors {
	sort.SliceStable(es, func(i, j int) bool {
		a, b := es[i], es[j]
		if (a.line == 0) != (b.line == 0) {
			return b.line == 0
		}
		if a.line != b.line {
			return a.line < b.line
		}
		return a.column < b.column
	})
	return es
}

// place is where a value was given.
type place struct {
	file         string
	line, column int
	flag         string // "--set train.lr=x", instead of the rest
}

func (p place) errorf(key, format string, args ...any) *Error {
	e := &Error{Where: p.flag, Key: key, Msg: fmt.Sprintf(format, args...), line: p.line, column: p.column}
	switch {
	case p.flag != "":
	case p.line > 0:
		e.Where = fmt.Sprintf("%s:%d:%d", p.file, p.line, p.column)
	default:
		e.Where = p.file
	}
	return e
}
