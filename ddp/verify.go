package ddp

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

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

// fact is one thing that all ranks must have alike.
type fact struct{ Key, Value string }

// facts describes this rank's options and parameters.
func (d *DDP) facts(params []*param.Param) []fact {
	o := d.options
	list := []fact{
		{"Options.BucketCap", strconv.Itoa(orDefault(o.BucketCap, DefaultBucketCap))},
		{"Options.FirstBucket", strconv.Itoa(orDefault(o.FirstBucket, DefaultFirstBucket))},
		{"Options.GradDType", o.GradDType.String()},
		{"Options.ReduceDType", o.ReduceDType.String()},
		{"Options.Op", o.Op.String()},
		{"Options.NoOverlap", strconv.FormatBool(o.NoOverlap)},
		{"Options.FindUnused", strconv.FormatBool(o.FindUnused)},
		{"Options.StaticGraph", strconv.FormatBool(o.StaticGraph)},
		{"Options.Rows", strconv.FormatBool(o.Rows)},
		{"number of parameters", strconv.Itoa(len(params))},
		{"number of buffers", strconv.Itoa(len(o.Buffers))},
	}
	for i, p := range params {
		value := fmt.Sprintf("%s%v", p.DType, p.Shape)
		if p.Frozen {
			value += " frozen"
		}
		if p.NoDecay {
			value += " without weight decay"
		}
		list = append(list, fact{p.Name, value}, fact{fmt.Sprintf("parameter %d", i), p.Name})
	}
	for i, b := range o.Buffers {
		list = append(list, fact{"buffer " + b.Name, b.Tensor.String()}, fact{fmt.Sprintf("buffer %d", i), b.Name})
	}
	order := "the default order"
	if d.plan.Rebuilt {
		order = "a given order"
	}
	return append(list, fact{"bucket plan", d.plan.Hash() + " in " + order})
}

// compareRanks fails on every rank alike where the ranks' facts differ. Equal
// ones, the usual case, cost a hash each; only others are exchanged.
func (d *DDP) compareRanks(ctx context.Context, params []*param.Param) error {
	text, err := json.Marshal(d.facts(params))
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	sums, err := d.gather(ctx, binary.LittleEndian.AppendUint64(sum[:], uint64(len(text))))
	if err != nil {
		return fmt.Errorf("ddp: %s: comparing the ranks' parameters: %w", who(d.group, d.group.Rank()), err)
	}
	longest, same := uint64(0), true
	for _, s := range sums {
		same = same && bytes.Equal(s, sums[0])
		longest = max(longest, binary.LittleEndian.Uint64(s[sha256.Size:]))
	}
	if same {
		return nil
	}
	texts, err := d.gather(ctx, append(text, make([]byte, longest-uint64(len(text)))...))
	if err != nil {
		return fmt.Errorf("ddp: %s: the ranks' parameters or options differ; exchanging them: %w", who(d.group, d.group.Rank()), err)
	}
	all := make([][]fact, len(texts))
	for r, t := range texts {
		if err := json.Unmarshal(bytes.TrimRight(t, "\x00"), &all[r]); err != nil {
			return fmt.Errorf("ddp: what %s sent of its parameters: %w", who(d.group, r), err)
		}
	}
	return errors.New("ddp: the ranks' parameters or options differ:\n" + difference(all))
}

// difference tells, a line each, which facts differ and who has what; at most
// twelve of them.
func difference(all [][]fact) string {
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
		who := map[string][]int{}
		for r := range all {
			v, ok := values[r][key]
			if !ok {
				v = "nothing"
			}
			if who[v] == nil {
				variants = append(variants, v)
			}
			who[v] = append(who[v], r)
		}
		if len(variants) == 1 {
			continue
		}
		parts := make([]string, len(variants))
		for i, v := range variants {
			parts[i] = fmt.Sprintf("%s %s", have(who[v]), v)
		}
		lines = append(lines, "  "+key+": "+strings.Join(parts, ", "))
	}
	const most = 12
	if n := len(lines) - most; n > 0 {
		lines = append(lines[:most], fmt.Sprintf("  and %d more", n))
	}
	return strings.Join(lines, "\n")
}

// have is "rank 1 has" or "ranks 0, 2 have".
func have(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d has", ranks[0])
	}
	return ranksText(ranks) + " have"
}

// ranksText is "rank 1" or "ranks 0, 2".
func ranksText(ranks []int) string {
	text := make([]string, len(ranks))
	for i, r := range ranks {
		text[i] = strconv.Itoa(r)
	}
	if len(ranks) == 1 {
		return "rank " + text[0]
	}
	return "ranks " + strings.Join(text, ", ")
}

// gather returns every rank's bytes, which must be of one length. It blocks the
// host until all have come. Should ctx end before, the group ends with it, for
// the others would wait for this rank from now on.
func (d *DDP) gather(ctx context.Context, mine []byte) ([][]byte, error) {
	all := make([]byte, len(mine)*d.group.Size())
	d.group.AllGather(d.hostComm, device.Host(all), device.Host(mine), dtype.U8)
	if err := d.hostComm.Synchronize(ctx); err != nil {
		d.group.Abort(fmt.Errorf("ddp: %s: waiting for the other ranks: %w", who(d.group, d.group.Rank()), err))
		return nil, err
	}
	parts := make([][]byte, d.group.Size())
	for r := range parts {
		parts[r] = all[r*len(mine) : (r+1)*len(mine)]
	}
	return parts, nil
}
