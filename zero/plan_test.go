package zero

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

// For any caps, stage and number of ranks each element of each parameter belongs to
// one rank, parameters lie apart and aligned, buckets are no larger than their cap but
// for their last parameter, and split equally into aligned shards.
func TestPlanCoversEverythingOnce(t *testing.T) {
	for _, params := range [][]*param.Param{toyF32(), toy(dtype.BF16), mixed(), deep(5, dtype.BF16)} {
		for _, n := range []int{1, 2, 3, 4, 7, 64} {
			for stage := 1; stage <= 3; stage++ {
				for _, o := range append(caps, PlanOptions{FirstBucket: 10 << 10, BucketCap: 100 << 10, GradDType: dtype.F32}) {
					o.Stage = stage
					plan := mustPlan(t, params, n, o)
					checkCover(t, plan, params)
					checkBuckets(t, plan, o)
				}
			}
		}
	}
}

func checkCover(t *testing.T, plan *Plan, params []*param.Param) {
	t.Helper()
	seen := map[*param.Param][]int{}
	for _, p := range params {
		seen[p] = make([]int, p.Numel())
	}
	for rank := range plan.Ranks {
		for _, r := range plan.Ranges(rank) {
			for e := r.From; e < r.To; e++ {
				seen[r.Param][e]++
			}
		}
	}
	for p, counts := range seen {
		if i := slices.IndexFunc(counts, func(n int) bool { return n != 1 }); i >= 0 {
			t.Fatalf("%s[%d] is held %d times in\n%s", p.Name, i, counts[i], plan)
		}
	}
}

func checkBuckets(t *testing.T, plan *Plan, o PlanOptions) {
	t.Helper()
	for _, b := range slices.Concat(plan.Buckets, plan.Frozen) {
		if b.Padded%(align*plan.Ranks) != 0 {
			t.Errorf("a bucket of %d elements does not split into aligned shards for %d ranks", b.Padded, plan.Ranks)
		}
		before := (b.Numel - b.Params[len(b.Params)-1].Numel()) * b.GradDType.Size()
		if limit := cmp.Or(o.BucketCap, DefaultBucketCap); before >= limit {
			t.Errorf("a bucket of %d parameters had %d bytes before the last, the cap is %d", len(b.Params), before, limit)
		}
		end := 0
		for i, p := range b.Params {
			if b.Offsets[i] < end || b.Offsets[i]%align != 0 {
				t.Errorf("%s is at %d, the one before it ends at %d", p.Name, b.Offsets[i], end)
			}
			end = b.Offsets[i] + p.Numel()
			if p.DType != b.DType || o.Stage == 3 && p.Block != b.Block {
				t.Errorf("%s of %s in block %d lies in a bucket of %s in block %d", p.Name, p.DType, p.Block, b.DType, b.Block)
			}
		}
		if end > b.Padded {
			t.Errorf("a bucket of %d elements ends at %d", b.Padded, end)
		}
	}
}

func mustPlan(t *testing.T, params []*param.Param, n int, o PlanOptions) *Plan {
	t.Helper()
	plan, err := NewPlan(params, n, o)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// mixed has weights of several types.
func mixed() []*param.Param {
	params := toyF32()
	for i, p := range params {
		p.DType = []dtype.DType{dtype.F32, dtype.BF16, dtype.F16}[i%3]
	}
	return params
}

// The order that a plan names gives the plan again; another order, another number of
// ranks, another type, another stage or a tied parameter gives another hash.
func TestPlanIsAPureFunction(t *testing.T) {
	o := PlanOptions{Stage: 2, FirstBucket: 100, BucketCap: 1003}
	plan := mustPlan(t, mixed(), 3, o)
	o.Order = plan.Order()
	if again := mustPlan(t, mixed(), 3, o); again.Hash() != plan.Hash() || again.String() != plan.String() {
		t.Errorf("the plan's own order gives\n%snot\n%s", again, plan)
	}
	hashes := map[string]string{plan.Hash(): "the plan"}
	for what, change := range map[string]func() (int, PlanOptions){
		"order": func() (int, PlanOptions) {
			p := o
			p.Order = slices.Clone(o.Order)
			slices.Reverse(p.Order)
			return 3, p
		},
		"ranks":       func() (int, PlanOptions) { return 4, o },
		"gradients":   func() (int, PlanOptions) { p := o; p.GradDType = dtype.F32; return 3, p },
		"reduce type": func() (int, PlanOptions) { p := o; p.ReduceDType = dtype.F32; return 3, p },
		"tied":        func() (int, PlanOptions) { p := o; p.Tied = []string{"embed"}; return 3, p },
		"stage":       func() (int, PlanOptions) { p := o; p.Stage = 1; return 3, p },
	} {
		n, p := change()
		h := mustPlan(t, mixed(), n, p).Hash()
		if hashes[h] != "" {
			t.Errorf("%s and %s have the hash %s", what, hashes[h], h)
		}
		hashes[h] = what
	}
}

func TestPlanIsPrinted(t *testing.T) {
	plan := mustPlan(t, toy(dtype.BF16), 2, PlanOptions{Stage: 3, FirstBucket: 100, BucketCap: 1003, GradDType: dtype.F32})
	text := plan.String()
	for _, want := range []string{"ZeRO stage 3, 2 ranks", plan.Hash(), "frozen", "bf16", fmt.Sprint(plan.Buckets[0].Numel), "a.none … a.w"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for stage, held := range map[int]func(b *Bucket) int{
		1: func(b *Bucket) int { return b.Padded }, 2: func(b *Bucket) int { return b.Padded }, 3: func(b *Bucket) int { return b.Padded / 2 },
	} {
		plan := mustPlan(t, toy(dtype.BF16), 2, PlanOptions{Stage: stage, FirstBucket: 100, BucketCap: 1003, GradDType: dtype.F32})
		frozen := slices.DeleteFunc(strings.Split(plan.String(), "\n"), func(line string) bool { return !strings.Contains(line, "frozen  ") })
		if len(frozen) != len(plan.Frozen) || len(frozen) == 0 {
			t.Errorf("stage %d: %d frozen rows of %d", stage, len(frozen), len(plan.Frozen))
		}
		for i, line := range frozen {
			b := &plan.Frozen[i]
			if got, want := strings.Fields(line)[3:5], []string{fmt.Sprint(b.Numel), fmt.Sprint(held(b))}; !slices.Equal(got, want) {
				t.Errorf("stage %d: a rank holds %q of frozen weights, want %q", stage, got, want)
			}
		}
	}
	if lines := strings.Count(text, "\n"); lines != 2+len(plan.Buckets)+len(plan.Frozen) {
		t.Errorf("%d lines:\n%s", lines, text)
	}
}
