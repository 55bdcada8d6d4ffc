// Package agree makes sure that the ranks of a group have alike what must be, and
// says what differs and on whom where they have not.
package agree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Members is who takes part in a group, for errors.
type Members interface {
	Rank() int
	Size() int
	// Host is the name of the host on which rank runs.
	Host(rank int) string
	// Abort ends the group on every rank: pending and later collectives fail
	// with err.
	Abort(err error)
}

// Group is what the package needs of a process group; *comm.Group is one.
type Group interface {
	Members
	// AllGather writes all ranks' src to dst, in the order of the ranks.
	AllGather(s device.Stream, dst, src device.Buffer, dt dtype.DType) *comm.Work
}

// Who is "rank 1 on node7".
func Who(m Members, rank int) string { return fmt.Sprintf("rank %d on %s", rank, m.Host(rank)) }

// Facts are what all ranks must have alike.
type Facts []fact

type fact struct{ Key, Value string }

// Add adds a fact. Two values are alike if fmt.Sprint writes them alike.
func (f *Facts) Add(key string, value any) { *f = append(*f, fact{key, fmt.Sprint(value)}) }

// Compare fails on every rank alike where the ranks' facts differ, with a line for
// each that does. Equal ones, the usual case, cost a hash each; only others are
// exchanged. s is a stream of the host, asker the package whose parameters and options
// the facts are, for errors. ctx bounds it as it does Gather.
func Compare(ctx context.Context, g Group, s device.Stream, asker string, facts Facts) error {
	text, err := json.Marshal(facts)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	sums, err := Gather(ctx, g, s, asker, binary.LittleEndian.AppendUint64(sum[:], uint64(len(text))))
	if err != nil {
		return fmt.Errorf("%s: %s: comparing the ranks' parameters: %w", asker, Who(g, g.Rank()), err)
	}
	longest, same := uint64(0), true
	for _, s := range sums {
		same = same && bytes.Equal(s, sums[0])
		longest = max(longest, binary.LittleEndian.Uint64(s[sha256.Size:]))
	}
	if same {
		return nil
	}
	texts, err := Gather(ctx, g, s, asker, append(text, make([]byte, longest-uint64(len(text)))...))
	if err != nil {
		return fmt.Errorf("%s: %s: the ranks' parameters or options differ; exchanging them: %w", asker, Who(g, g.Rank()), err)
	}
	all := make([]Facts, len(texts))
	for r, t := range texts {
		if err := json.Unmarshal(bytes.TrimRight(t, "\x00"), &all[r]); err != nil {
			return fmt.Errorf("%s: what %s sent of its parameters: %w", asker, Who(g, r), err)
		}
	}
	return errors.New(asker + ": the ranks' parameters or options differ:\n" + difference(all))
}

// Gather returns every rank's bytes, which must be of one length. It blocks the
// host until all have come. Should ctx end before, the group ends with it, for
// the others would wait for this rank from now on.
func Gather(ctx context.Context, g Group, s device.Stream, asker string, mine []byte) ([][]byte, error) {
	all := make([]byte, len(mine)*g.Size())
	g.AllGather(s, device.Host(all), device.Host(mine), dtype.U8)
	if err := s.Synchronize(ctx); err != nil {
		g.Abort(fmt.Errorf("%s: %s: waiting for the other ranks: %w", asker, Who(g, g.Rank()), err))
		return nil, err
	}
	parts := make([][]byte, g.Size())
	for r := range parts {
		parts[r] = all[r*len(mine) : (r+1)*len(mine)]
	}
	return parts, nil
}

// difference tells, a line each, which facts differ and who has what; at most
// twelve of them.
func difference(all []Facts) string {
	var keys []string
	known := map[string]bool{}
	values := make([]map[string]string, len(all))
	for r, facts := range all {
		values[r] = map[string]string{}
		for _, f := range facts {
			values[r][f.Key] = f.Value
			if !known[f.Key] {
				known[f.Key] = true
				keys = append(keys, f.Key)
			}
		}
	}
	var lines []string
	for _, key := range keys {
		var variants []string
		ranks := map[string][]string{}
		for r := range all {
			v, ok := values[r][key]
			if !ok {
				v = "nothing"
			}
			if ranks[v] == nil {
				variants = append(variants, v)
			}
			ranks[v] = append(ranks[v], strconv.Itoa(r))
		}
		if len(variants) == 1 {
			continue
		}
		for i, v := range variants {
			have := "rank " + ranks[v][0] + " has "
			if len(ranks[v]) > 1 {
				have = "ranks " + strings.Join(ranks[v], ", ") + " have "
			}
			variants[i] = have + v
		}
		lines = append(lines, "  "+key+": "+strings.Join(variants, ", "))
	}
	const most = 12
	if n := len(lines) - most; n > 0 {
		lines = append(lines[:most], fmt.Sprintf("  and %d more", n))
	}
	return strings.Join(lines, "\n")
}
