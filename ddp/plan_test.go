package ddp

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

const mib = 1 << 20

// resnet lists torchvision's parameters in the order of declaration:
// convolutions, batch norms' weights and biases, then the classifier.
func resnet(blocks [4]int, bottleneck bool) []*param.Param {
	var list []*param.Param
	add := func(shapes ...[]int) {
		for _, s := range shapes {
			list = append(list, &param.Param{Name: fmt.Sprintf("p%d", len(list)), Shape: s, DType: dtype.F32})
		}
	}
	norm := func(c int) { add([]int{c}, []int{c}) }
	add([]int{64, 3, 7, 7})
	norm(64)
	in := 64
	for stage, n := range blocks {
		c := 64 << stage
		for block := range n {
			out := c
			if bottleneck {
				out = 4 * c
				add([]int{c, in, 1, 1})
				norm(c)
				add([]int{c, c, 3, 3})
				norm(c)
				add([]int{out, c, 1, 1})
				norm(out)
			} else {
				add([]int{c, in, 3, 3})
				norm(c)
				add([]int{c, c, 3, 3})
				norm(c)
			}
			if stage > 0 && block == 0 || in != out {
				add([]int{out, in, 1, 1})
				norm(out)
			}
			in = out
		}
	}
	add([]int{1000, in}, []int{1000})
	return list
}

// The figures with caps 25 and 35 of ResNet-18 are PyTorch's, as published; the
// others follow from the same rule, computed apart from this program.
func TestPlanGivesPublishedSizes(t *testing.T) {
	resnet18, resnet50 := resnet([4]int{2, 2, 2, 2}, false), resnet([4]int{3, 4, 6, 3}, true)
	if n := numel(resnet18); n != 11689512 {
		t.Fatalf("ResNet-18 has %d parameters", n)
	}
	if n := numel(resnet50); n != 25557032 {
		t.Fatalf("ResNet-50 has %d parameters", n)
	}
	for _, c := range []struct {
		name       string
		params     []*param.Param
		first, cap int
		want       []int
	}{
		{"resnet18", resnet18, 0, 0, []int{2052000, 28852224, 15853824}},
		{"resnet18", resnet18, 1, 25, []int{2052000, 28852224, 15853824}},
		{"resnet18", resnet18, 1, 35, []int{2052000, 38297600, 6408448}},
		{"resnet18", resnet18, 1, 10, []int{2052000, 18882560, 14692352, 10501120, 630016}},
		{"resnet18", resnet18, 1, 5, []int{2052000, 9441280, 9441280, 9969664, 7084032, 6037504, 2732288}},
		{"resnet18", resnet18, 1, 1, []int{2052000, 9441280, 9441280, 9969664, 4722688, 2361344, 2361344, 2494464, 1181696, 1181696, 1068544, 482048}},
		{"resnet18", resnet18, 25, 25, []int{30904224, 15853824}},
		{"resnet50", resnet50, 1, 35, []int{8196000, 44105728, 37046272, 12880128}},
		{"resnet50", resnet50, 1, 25, []int{8196000, 31502336, 26255360, 26550272, 9724160}},
		{"resnet50", resnet50, 1, 10, []int{8196000, 13651968, 17850368, 12603392, 13651968, 11038720, 12355584, 10989568, 1890560}},
		{"resnet50", resnet50, 1, 5, []int{8196000, 13651968, 8409088, 9441280, 12603392, 13651968, 5519360, 5519360, 5525504, 6830080, 6574080, 5272576, 1033472}},
		{"resnet50", resnet50, 25, 25, []int{30257056, 26255360, 28366848, 17348864}},
	} {
		t.Run(fmt.Sprintf("%s first=%d cap=%d", c.name, c.first, c.cap), func(t *testing.T) {
			plan := mustPlan(t, c.params, PlanOptions{FirstBucket: c.first * mib, BucketCap: c.cap * mib})
			var got []int
			for _, b := range plan.Buckets {
				got = append(got, b.Bytes)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// Each trainable parameter lies in one bucket of its type, aligned, and no two
// overlap; padding stays below 256 bytes a parameter and does not count.
func TestPlanCoversEachParameterOnce(t *testing.T) {
	var params []*param.Param
	for i := range 50 {
		dt := dtype.F32
		if i%3 == 0 {
			dt = dtype.BF16
		}
		params = append(params, &param.Param{Name: fmt.Sprint("w", i), Shape: []int{i % 7, 3}, DType: dt, Frozen: i%5 == 4})
	}
	plan := mustPlan(t, params, PlanOptions{FirstBucket: 20, BucketCap: 100})
	var want, got []string
	for i := len(params) - 1; i >= 0; i-- {
		if !params[i].Frozen {
			want = append(want, params[i].Name)
		}
	}
	place := map[string]int{}
	for i, name := range want {
		place[name] = i
	}
	lastSeen, total := -1, 0
	for _, b := range plan.Buckets {
		end, bytes, last := 0, 0, -1
		for j, p := range b.Params {
			if p.DType != b.DType {
				t.Errorf("%s of type %s lies in a bucket of %s", p.Name, p.DType, b.DType)
			}
			if b.Offsets[j] < end || b.Offsets[j]%256 != 0 {
				t.Errorf("%s starts at %d, the one before ends at %d", p.Name, b.Offsets[j], end)
			}
			n := p.Numel() * p.DType.Size()
			end, bytes = b.Offsets[j]+n, bytes+n
			if place[p.Name] < last {
				t.Errorf("%s is out of order", p.Name)
			}
			last = place[p.Name]
			got = append(got, p.Name)
		}
		if b.Bytes != bytes || b.Padded < end || b.Padded-bytes >= 256*len(b.Params) {
			t.Errorf("bucket of %d bytes (%d padded) holds %d, ends at %d", b.Bytes, b.Padded, bytes, end)
		}
		if last < lastSeen {
			t.Errorf("a bucket stands behind one that is complete later")
		}
		lastSeen, total = last, total+b.Padded
	}
	if len(got) != len(want) || total != plan.Bytes {
		t.Errorf("%d parameters in buckets, want %d; %d bytes, plan says %d", len(got), len(want), total, plan.Bytes)
	}
}

func TestPlanFollowsAGivenOrder(t *testing.T) {
	params := list("a", 4, "b", 4, "c", 4, "d", 4)
	declared := mustPlan(t, params, PlanOptions{FirstBucket: 1, BucketCap: 32})
	if got := declared.Order(); !reflect.DeepEqual(got, []string{"d", "c", "b", "a"}) {
		t.Errorf("default order is %v", got)
	}
	given := mustPlan(t, params, PlanOptions{FirstBucket: 1, BucketCap: 32, Order: []string{"b", "d", "a", "c"}})
	if got := given.Order(); !reflect.DeepEqual(got, []string{"b", "d", "a", "c"}) {
		t.Errorf("given order became %v", got)
	}
	if len(given.Buckets) != 3 || given.Bytes != declared.Bytes {
		t.Errorf("%d buckets of %d bytes, want 3 of %d", len(given.Buckets), given.Bytes, declared.Bytes)
	}
	if given.Hash() == declared.Hash() {
		t.Error("plans with different orders have one hash")
	}
	again := mustPlan(t, params, PlanOptions{FirstBucket: 1, BucketCap: 32, Order: given.Order()})
	if again.Hash() != given.Hash() {
		t.Error("a plan's own order gives another plan")
	}
}

func TestPlanRefuses(t *testing.T) {
	frozen := list("a", 1, "b", 1)
	frozen[0].Frozen = true
	integer := list("a", 1)
	integer[0].DType = dtype.I32
	for _, c := range []struct {
		params []*param.Param
		o      PlanOptions
		want   string
	}{
		{list("a", 1, "a", 2), PlanOptions{}, "two parameters are called a"},
		{nil, PlanOptions{}, "no parameter is trainable"},
		{frozen[:1], PlanOptions{}, "no parameter is trainable"},
		{integer, PlanOptions{}, "parameter a: a gradient cannot be of type i32"},
		{list("a", 1), PlanOptions{BucketCap: -1}, "BucketCap -1"},
		{frozen, PlanOptions{Order: []string{"b", "a"}}, "names a, which is frozen"},
		{list("a", 1), PlanOptions{Order: []string{"a", "x"}}, "names x, which the model does not have"},
		{list("a", 1, "b", 1), PlanOptions{Order: []string{"a", "a"}}, "names a, which"},
		{list("a", 1, "b", 1), PlanOptions{Order: []string{"a"}}, "lacks b"},
	} {
		if _, err := NewPlan(c.params, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
}

// list makes f32 parameters of the given names and element counts.
func list(namesAndSizes ...any) []*param.Param {
	var params []*param.Param
	for i := 0; i < len(namesAndSizes); i += 2 {
		params = append(params, &param.Param{Name: namesAndSizes[i].(string), Shape: []int{namesAndSizes[i+1].(int)}, DType: dtype.F32})
	}
	return params
}

func numel(params []*param.Param) int {
	n := 0
	for _, p := range params {
		n += p.Numel()
	}
	return n
}

func mustPlan(t *testing.T, params []*param.Param, o PlanOptions) *Plan {
	t.Helper()
	plan, err := NewPlan(params, o)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}
