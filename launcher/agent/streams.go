package agent

import (
	"fmt"
	"strconv"
	"strings"
)

// Std is a set of standard streams, numbered as torchrun does.
type Std uint8

// The streams of a Std.
const (
	Stdout Std = 1
	Stderr Std = 2
)

// StdMap gives a Std for each local rank.
type StdMap struct {
	all     Std
	perRank map[int]Std // ranks that are not in it take all
}

// Of returns the streams of a local rank.
func (m StdMap) Of(localRank int) Std {
	if s, ok := m.perRank[localRank]; ok {
		return s
	}
	return m.all
}

// ParseStdMap reads "3" for every rank (0 none, 1 stdout, 2 stderr, 3 both), or
// "0:1,1:2" for the ranks it names and none for the others.
func ParseStdMap(s string) (StdMap, error) {
	m := StdMap{perRank: map[int]Std{}}
	if s == "" {
		return m, nil
	}
	if !strings.Contains(s, ":") {
		std, err := parseStd(s)
		return StdMap{all: std}, err
	}
	for pair := range strings.SplitSeq(s, ",") {
		left, right, _ := strings.Cut(pair, ":")
		rank, err := strconv.Atoi(strings.TrimSpace(left))
		if err != nil || rank < 0 {
			return StdMap{}, fmt.Errorf("%q: %q is no local rank; want 0, 1, 2, 3, or a list such as 0:1,1:2", s, left)
		}
		std, err := parseStd(right)
		if err != nil {
			return StdMap{}, err
		}
		if _, twice := m.perRank[rank]; twice {
			return StdMap{}, fmt.Errorf("%q: local rank %d stands there twice", s, rank)
		}
		m.perRank[rank] = std
	}
	return m, nil
}

func parseStd(s string) (Std, error) {
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil || n < 0 || n > 3 {
		return 0, fmt.Errorf("%q names no streams: 0 none, 1 stdout, 2 stderr, 3 both", s)
	}
	return Std(n), nil
}

// ParseRanks reads "0,2,3". An empty string is nil: every rank.
func ParseRanks(s string) (map[int]bool, error) {
	if s == "" {
		return nil, nil
	}
	ranks := map[int]bool{}
	for field := range strings.SplitSeq(s, ",") {
		r, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || r < 0 {
			return nil, fmt.Errorf("%q: %q is no local rank; want a list such as 0,2", s, field)
		}
		ranks[r] = true
	}
	return ranks, nil
}
