package data

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models"
)

// Samples at, one below and one above the length of a sequence, by each rule. One
// of n tokens takes n-1 positions: "<s>" + 1 + answer + "</s>".
func TestTruncation(t *testing.T) {
	fits, long, lost := pair("a", "bc"), pair("d", "efg"), pair("hijkl", "m")
	for _, c := range []struct {
		rule string
		rows []any
		want []string
		info Info
	}{
		{"cut", []any{fits, long, lost}, []string{"<s>abc|_bc</s>", "<s>def|_efg"},
			Info{Samples: 2, NoTarget: 1, CutDocuments: 2, UnusedTokens: 1 + 3 + 4}},
		{"drop", []any{fits, long, lost}, []string{"<s>abc|_bc</s>"}, Info{Samples: 1, Dropped: 2, UnusedTokens: 6 + 8}},
		{"split", []any{fits, long, lost}, []string{"<s>abc|_bc</s>", "<s>def|_efg", "g|</s>", "klm|_m</s>"},
			Info{Samples: 3, UnusedTokens: 4}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			o := samplesOptions(t, "prompt_completion", 4, folder(t, map[string]string{"f": lines(c.rows...)})+"/f")
			o.Truncation = c.rule
			d := open(t, o).Train
			wantShown(t, d, c.want...)
			i := d.Info()
			got := Info{Samples: i.Samples, NoTarget: i.NoTarget, Dropped: i.Dropped, CutDocuments: i.CutDocuments, UnusedTokens: i.UnusedTokens}
			if got != c.info {
				t.Errorf("got %+v, want %+v", got, c.info)
			}
			if lines := i.Warnings(); c.rule == "cut" && (len(lines) != 2 || !strings.Contains(lines[0], "f:3") || !strings.Contains(lines[1], "f:2")) {
				t.Errorf("the warnings are %q", lines)
			}
		})
	}
	o := samplesOptions(t, "prompt_completion", 4, folder(t, map[string]string{"f": lines(fits, long)})+"/f")
	o.Truncation = "error"
	_, err := Open(context.Background(), o)
	wantError(t, err, "f:2: a sample of 6 tokens", "data.seq_len = 4")
}

// Where no sample is left there is nothing to train on, and the error says why.
func TestAllSamplesLost(t *testing.T) {
	o := samplesOptions(t, "prompt_completion", 4, folder(t, map[string]string{"f": lines(pair("abcd", "e"), pair("abcde", "f"))})+"/f")
	_, err := Open(context.Background(), o)
	wantError(t, err, "data.train: no sample is left to learn from: 2 samples are skipped, for no token of them is learned", "data.seq_len", "f:1")
	o.Train = []string{folder(t, map[string]string{"f": lines(said("user", "a"), said("system", "b"))}) + "/f"}
	o.Format = "chat"
	_, err = Open(context.Background(), o)
	wantError(t, err, "no sample is left to learn from: 2 samples")
}

// The token that ends a text counts although padding has the same id.
func TestPaddingIsMaskedByLength(t *testing.T) {
	o := samplesOptions(t, "prompt_completion", 6, folder(t, map[string]string{"f": lines(pair("a", "b"))})+"/f")
	o.Encoding.Tokenizer = fakeTokenizer{-1, 0} // 0 pads, too
	got := readAll(t, open(t, o).Train)[0]
	want := [2][]int32{{'a', 'b', 0, 0, 0, 0}, {'b', 0, Ignore, Ignore, Ignore, Ignore}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// lengths of samples "<s>" "x" answer "</s>" that take so many positions.
func someRows(seed uint64, n, most int) (list []any) {
	r := models.NewRand(seed, "rows")
	for i := range n {
		list = append(list, pair("x", fmt.Sprintf("%0*d", 1+r.Uint64(uint64(i))%uint64(most-2), i)))
	}
	return list
}

// Packing loses and repeats no sample, crosses no bound, and wastes little.
func TestPacking(t *testing.T) {
	for _, seqLen := range []int{7, 64, 200} {
		file := lines(someRows(uint64(seqLen), 300, min(seqLen-2, 60))...)
		o := samplesOptions(t, "prompt_completion", seqLen, folder(t, map[string]string{"f": file})+"/f")
		single := shown(t, open(t, o).Train)
		o.Packing = true
		d := open(t, o).Train.(Documents)
		docs := make([]int32, seqLen)
		var unpacked []string
		for i, s := range readAll(t, d) {
			for j := range docs {
				docs[j] = -7 // Docs must overwrite it
			}
			d.Docs(i, docs)
			for at := 0; at < seqLen; {
				to := at
				for to < seqLen && docs[to] == int32(at) {
					to++
				}
				if to == at {
					t.Fatalf("seq_len %d, sequence %d: the bounds are %v", seqLen, i, docs)
				}
				tokens, targets := s[0][at:to], s[1][at:to]
				if slices.Max(targets) == Ignore { // padding
					if to != seqLen || slices.Max(tokens) != 0 {
						t.Errorf("seq_len %d, sequence %d holds %v from %d on, which nothing is learned from", seqLen, i, tokens, at)
					}
				} else {
					unpacked = append(unpacked, decode(tokens)+"|"+decode(targets))
				}
				at = to
			}
		}
		if slices.Equal(unpacked, single) {
			t.Errorf("seq_len %d: the samples are not shuffled", seqLen)
		}
		slices.Sort(single)
		slices.Sort(unpacked)
		if !slices.Equal(unpacked, single) {
			t.Errorf("seq_len %d: packed, the samples are\n%q\nwant\n%q", seqLen, unpacked, single)
		}
		i := d.Info()
		if seqLen > 7 && i.Padding > int64(i.Sequences*seqLen/20) || i.Sequences != d.Len() || i.Samples != 300 {
			t.Errorf("seq_len %d: %d of %d x %d positions are padding; %+v", seqLen, i.Padding, i.Sequences, seqLen, i)
		}
	}
}

// pack is best fit decreasing, against the plainest way to do it.
func TestPackIsBestFit(t *testing.T) {
	r := models.NewRand(1, "lengths")
	for trial := range uint64(50) {
		room := 1 + int(r.Uint64(trial<<32)%150)
		lengths := make([]int32, 1+r.Uint64(trial<<32+1)%200)
		for i := range lengths {
			lengths[i] = 1 + int32(r.Uint64(trial<<32+2+uint64(i))%uint64(room))
		}
		pieces, starts := pack(lengths, room, trial)
		var left []int // of the sequences, as best fit has them
		for _, n := range slices.Backward(slices.Sorted(slices.Values(lengths))) {
			best := -1
			for i, l := range left {
				if l >= int(n) && (best < 0 || l < left[best]) {
					best = i
				}
			}
			if best < 0 {
				best, left = len(left), append(left, room)
			}
			left[best] -= int(n)
		}
		var got []int
		for s := range len(starts) - 1 {
			l := room
			for _, p := range pieces[starts[s]:starts[s+1]] {
				l -= int(lengths[p])
			}
			got = append(got, l)
		}
		slices.Sort(got)
		slices.Sort(left)
		if !slices.Equal(got, left) {
			t.Fatalf("room %d, lengths %v: %v is left, want %v", room, lengths, got, left)
		}
		slices.Sort(pieces)
		for i, p := range pieces {
			if int(p) != i {
				t.Fatalf("piece %d is missing or twice", i)
			}
		}
	}
}

// An epoch has each source's samples as often as its weight says, whole copies
// first, and the same on every opening.
func TestWeights(t *testing.T) {
	files := map[string]string{}
	for _, name := range []string{"a", "b", "c", "d"} {
		var list []any
		for i := range 10 {
			list = append(list, pair(name, fmt.Sprint(i)))
		}
		list = append(list, pair("too long for a sequence", "z")) // of no use: weights are of the others
		files[name] = lines(list...)
	}
	dir := folder(t, files)
	for _, packing := range []bool{false, true} {
		o := samplesOptions(t, "prompt_completion", 9, dir+"/a", dir+"/b", dir+"/c", dir+"/d")
		o.Weights, o.Packing = []float64{1, 2.3, 0.25, 0}, packing
		count := func() map[string]int {
			times := map[string]int{}
			for _, s := range shown(t, open(t, o).Train) {
				tokens, _, _ := strings.Cut(s, "|")
				for _, x := range strings.Split(tokens, "<s>")[1:] {
					times[x]++
				}
			}
			return times
		}
		times := count()
		if again := count(); !reflect.DeepEqual(times, again) {
			t.Errorf("packing %t: %v, and then %v", packing, times, again)
		}
		for name, want := range map[string][]int{
			"a": {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, "b": {2, 2, 2, 2, 2, 2, 2, 3, 3, 3}, "c": {0, 0, 0, 0, 0, 0, 0, 1, 1, 1}, "d": make([]int, 10),
		} {
			var got []int
			for i := range 10 {
				got = append(got, times[fmt.Sprintf("%s%d", name, i)])
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("packing %t: the samples of %s come %v times, want %v", packing, name, got, want)
			}
		}
	}
}

// What is held back depends on the seed and the samples, not on the rows' order; no
// sample is on both sides, and none is lost.
func TestSplitOfSamples(t *testing.T) {
	list := someRows(5, 200, 20)
	list = append(list, list[:40]...) // and some twice
	held := func(seed uint64, list []any) (train, eval []string) {
		o := samplesOptions(t, "prompt_completion", 40, folder(t, map[string]string{"f": lines(list...)})+"/f")
		o.Seed, o.EvalSplit = seed, 0.2
		s := open(t, o)
		return shown(t, s.Train), shown(t, s.Eval)
	}
	train, eval := held(1, list)
	if n := len(eval); n < 48 || n > 49 || len(train)+n != 240 {
		t.Errorf("%d are held back and %d left, of 240", n, len(train))
	}
	for _, e := range eval {
		if slices.Contains(train, e) {
			t.Errorf("%s is on both sides", e)
		}
	}
	_, other := held(2, list)
	if slices.Equal(other, eval) {
		t.Error("another seed holds back the same samples")
	}
	slices.Reverse(list)
	_, reversed := held(1, list)
	slices.Sort(reversed)
	slices.Sort(eval)
	if !slices.Equal(reversed, eval) {
		t.Error("the order of the rows decides on what is held back")
	}
}

// Files of data.eval are not trained on.
func TestEvalFiles(t *testing.T) {
	dir := folder(t, map[string]string{"a": lines(pair("", "a")), "b": lines(pair("", "b"))})
	o := samplesOptions(t, "prompt_completion", 9, dir+"/*")
	o.Eval = []string{dir + "/b"}
	s := open(t, o)
	wantShown(t, s.Train, "<s>a|a</s>")
	wantShown(t, s.Eval, "<s>b|b</s>")
}

// Packed samples make the same batches for any split over ranks, also from
// mid-epoch on; with their bounds.
func TestSamplesDoNotDependOnTheSplit(t *testing.T) {
	o := samplesOptions(t, "prompt_completion", 32, folder(t, map[string]string{"f": lines(someRows(3, 300, 20)...)})+"/f")
	o.Packing = true
	d := open(t, o).Train
	want := steps(t, d, Share{World: 1, MicroBatch: 12, GradAccum: 1}, 0, 14)
	if d.Len() > 12*12 {
		t.Fatalf("%d sequences: the steps do not reach into the second epoch", d.Len())
	}
	for _, s := range []Share{
		{World: 1, MicroBatch: 3, GradAccum: 4}, {World: 2, MicroBatch: 6, GradAccum: 1}, {World: 3, MicroBatch: 2, GradAccum: 2}, {World: 4, MicroBatch: 3, GradAccum: 1},
	} {
		for _, from := range []int{0, 5, 11} {
			if got := steps(t, d, s, from, 14); !reflect.DeepEqual(got, want[from:]) {
				t.Errorf("%+v: the steps from %d on differ from those of one rank", s, from)
			}
		}
	}
}

// The bounds that a loader and an evaluation hand out are of the sequences that
// they hand out.
func TestBoundsBelongToTheirSequences(t *testing.T) {
	o := samplesOptions(t, "prompt_completion", 16, folder(t, map[string]string{"f": lines(someRows(3, 100, 12)...)})+"/f")
	o.Packing = true
	d := open(t, o).Train
	tokens, targets, docs := make([]int32, 3*16), make([]int32, 3*16), make([]int32, 3*16)
	check := func(what string) {
		t.Helper()
		for b := range 3 {
			for i := range 16 {
				begins := tokens[b*16+i] == bos || tokens[b*16+i] == 0 && (i == 0 || tokens[b*16+i-1] != 0)
				if at := docs[b*16+i]; begins != (at == int32(i)) || at > int32(i) {
					t.Fatalf("%s: tokens %q with bounds %v", what, decode(tokens[b*16:b*16+16]), docs[b*16:b*16+16])
				}
			}
		}
	}
	share := Share{Rank: 1, World: 2, MicroBatch: 3, GradAccum: 2, Total: int64(d.Len())}
	l, err := NewLoader(d, 9, share)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for k := range stepsOf(d.Len(), share.Batch()) {
		if _, err := l.Step(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		for m := range 2 {
			l.Micro(m, tokens, targets)
			if !l.Docs(m, docs) {
				t.Fatal("no bounds")
			}
			check("loader")
		}
	}
	e, err := NewEvaluation(d, 0, share)
	if err != nil {
		t.Fatal(err)
	}
	for m := range e.Batches() {
		if _, err := e.Read(m, tokens, targets); err != nil {
			t.Fatal(err)
		}
		if !e.Docs(m, docs) {
			t.Fatal("no bounds")
		}
		check("evaluation")
	}
	o.Packing = false
	single := open(t, o).Train
	if l, err = NewLoader(single, 9, share); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e, err = NewEvaluation(single, 0, share)
	if err != nil {
		t.Fatal(err)
	}
	if l.Docs(0, docs) || e.Docs(0, docs) {
		t.Error("bounds of sequences that are one document each")
	}
}

// Ten samples on three ranks: every rank makes as many steps, and an epoch has each
// sample once; what the last batch lacks does not count.
func TestTheLastBatchIsNotFilledUp(t *testing.T) {
	var list []any
	for i := range 10 {
		list = append(list, pair("x", fmt.Sprint(i)))
	}
	o := samplesOptions(t, "prompt_completion", 5, folder(t, map[string]string{"f": lines(list...)})+"/f")
	for _, packing := range []bool{false, true} {
		o.Packing = packing
		d := open(t, o).Train
		for _, s := range []Share{{World: 3, MicroBatch: 1, GradAccum: 1}, {World: 3, MicroBatch: 1, GradAccum: 2}, {World: 1, MicroBatch: 4, GradAccum: 1}, {World: 2, MicroBatch: 1, GradAccum: 2}} {
			const epochs = 2
			s.Total = epochs * int64(d.Len())
			times := map[string]int{}
			n := stepsOf(epochs*d.Len(), s.Batch())
			for _, step := range steps(t, d, s, 0, n) {
				for _, x := range step {
					times[x]++
				}
			}
			empty := fmt.Sprint(make([]int32, 5), slices.Repeat([]int32{Ignore}, 5))
			if want := n*s.Batch() - epochs*10; times[empty] != want {
				t.Errorf("%+v: %d empty sequences, want %d", s, times[empty], want)
			}
			delete(times, empty)
			for x, n := range times {
				if n != epochs {
					t.Errorf("%+v: %s comes %d times", s, x, n)
				}
			}
			if len(times) != 10 {
				t.Errorf("%+v: %d samples", s, len(times))
			}
		}
	}
}

func TestReadingSamplesAllocatesNothing(t *testing.T) {
	o := samplesOptions(t, "prompt_completion", 32, folder(t, map[string]string{"f": lines(someRows(3, 300, 20)...)})+"/f")
	o.Packing = true
	d := open(t, o).Train.(Documents)
	tokens, targets := make([]int32, 32), make([]int32, 32)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := d.Read(5, tokens, targets); err != nil {
			t.Fatal(err)
		}
		d.Docs(5, tokens)
	}); n != 0 {
		t.Errorf("%v allocations a sequence", n)
	}
}

func BenchmarkPack(b *testing.B) {
	r := models.NewRand(1, "lengths")
	lengths := make([]int32, 1_000_000)
	for i := range lengths {
		lengths[i] = 1 + int32(r.Uint64(uint64(i))%1024)
	}
	for b.Loop() {
		pack(lengths, 2048, 1)
	}
	b.ReportMetric(float64(b.N*len(lengths))/b.Elapsed().Seconds(), "samples/s")
}
