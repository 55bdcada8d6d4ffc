package zero

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

// fact is one thing that all ranks must have alike.
type fact struct{ Key, Value string }

// facts describes this rank's options and parameters.
func (z *Zero) facts(params []*param.Param) (list []fact) {
	add := func(key string, value any) { list = append(list, fact{key, fmt.Sprint(value)}) }
	o := z.options
	add("Options.Stage", o.Stage)
	add("Options.BucketCap", orDefault(o.BucketCap, DefaultBucketCap))
	add("Options.FirstBucket", orDefault(o.FirstBucket, DefaultFirstBucket))
	add("Options.GradDType", o.GradDType)
	add("Options.ReduceDType", o.ReduceDType)
	add("Options.Op", o.Op)
	add("Options.NoOverlap", o.NoOverlap)
	add("number of parameters", len(params))
	for i, p := range params {
		value := fmt.Sprintf("%s%v in block %d", p.DType, p.Shape, p.Block)
		if p.Frozen {
			value += " frozen"
		}
		if p.NoDecay {
			value += " without weight decay"
		}
		add(p.Name, value)
		add(fmt.Sprintf("parameter %d", i), p.Name)
	}
	add("shard plan", z.plan.Hash())
	return list
}

// compareRanks fails on every rank alike where the ranks' facts differ. Equal
// ones, the usual case, cost a hash each; only others are exchanged.
func (z *Zero) compareRanks(ctx context.Context, params []*param.Param) error {
	text, err := json.Marshal(z.facts(params))
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	sums, err := z.gatherBytes(ctx, binary.LittleEndian.AppendUint64(sum[:], uint64(len(text))))
	if err != nil {
		return fmt.Errorf("zero: %s: comparing the ranks' parameters: %w", who(z.group, z.group.Rank()), err)
	}
	longest, same := uint64(0), true
	for _, s := range sums {
		same = same && bytes.Equal(s, sums[0])
		longest = max(longest, binary.LittleEndian.Uint64(s[sha256.Size:]))
	}
	if same {
		return nil
	}
	texts, err := z.gatherBytes(ctx, append(text, make([]byte, longest-uint64(len(text)))...))
	if err != nil {
		return fmt.Errorf("zero: %s: the ranks' parameters or options differ; exchanging them: %w", who(z.group, z.group.Rank()), err)
	}
	all := make([][]fact, len(texts))
	for r, t := range texts {
		if err := json.Unmarshal(bytes.TrimRight(t, "\x00"), &all[r]); err != nil {
			return fmt.Errorf("zero: what %s sent of its parameters: %w", who(z.group, r), err)
		}
	}
	return errors.New("zero: the ranks' parameters or options differ:\n" + difference(all))
}

// difference tells, a line each, which facts differ and who has what; at most
// twelve of them.
func difference(all [][]fact) string {
	var keys, lines []string
	values := make([]map[string]string, len(all))
	known := map[string]bool{}
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
	for _, key := range keys {
		var variants []string
		whose := map[string][]string{}
		for r := range all {
			v, ok := values[r][key]
			if !ok {
				v = "nothing"
			}
			if !slices.Contains(variants, v) {
				variants = append(variants, v)
			}
			whose[v] = append(whose[v], fmt.Sprint(r))
		}
		if len(variants) == 1 {
			continue
		}
		for i, v := range variants {
			have := "rank " + whose[v][0] + " has "
			if len(whose[v]) > 1 {
				have = "ranks " + strings.Join(whose[v], ", ") + " have "
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

// gatherBytes returns every rank's bytes, which must be of one length. It blocks the
// host until all have come. Should ctx end before, the group ends with it, for the
// others would wait for this rank from now on.
func (z *Zero) gatherBytes(ctx context.Context, mine []byte) ([][]byte, error) {
	n := len(mine)
	all := make([]byte, n*z.group.Size())
	z.group.AllGather(z.hostComm, device.Host(all), device.Host(mine), dtype.U8)
	if err := z.hostComm.Synchronize(ctx); err != nil {
		z.group.Abort(fmt.Errorf("zero: %s: waiting for the other ranks: %w", who(z.group, z.group.Rank()), err))
		return nil, err
	}
	parts := make([][]byte, z.group.Size())
	for r := range parts {
		parts[r] = all[r*n : (r+1)*n]
	}
	return parts, nil
}
