package data

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// steps reads steps from a loader of each rank and returns, for each step, the
// sequences of all ranks as sorted text, which does not tell who read what.
func steps(t *testing.T, d Dataset, share Share, from, to int) [][]string {
	t.Helper()
	out := make([][]string, to-from)
	for share.Rank = range share.World {
		l, err := NewLoader(d, 9, share)
		if err != nil {
			t.Fatal(err)
		}
		tokens := make([]int32, share.MicroBatch*d.SeqLen())
		targets := make([]int32, len(tokens))
		for k := from; k < to; k++ {
			total, err := l.Step(context.Background(), k)
			if err != nil {
				t.Fatal(err)
			}
			for m := range share.GradAccum {
				n := l.Micro(m, tokens, targets)
				total -= n
				for b := range share.MicroBatch {
					at := b * d.SeqLen()
					for _, target := range targets[at : at+d.SeqLen()] {
						if target != Ignore {
							n--
						}
					}
					out[k-from] = append(out[k-from], fmt.Sprint(tokens[at:at+d.SeqLen()], targets[at:at+d.SeqLen()]))
				}
				if n != 0 {
					t.Errorf("step %d, rank %d, micro-step %d: the count of targets is off by %d", k, share.Rank, m, n)
				}
			}
			if total != 0 {
				t.Errorf("step %d, rank %d: the step's count differs from its micro-steps' by %d", k, share.Rank, total)
			}
		}
		l.Close()
	}
	for _, s := range out {
		slices.Sort(s)
	}
	return out
}

// A global batch consists of the same sequences for any split over ranks,
// micro-steps and micro-batches, packed or not, across the ends of epochs.
func TestBatchDoesNotDependOnTheSplit(t *testing.T) {
	files := map[string]string{}
	for i := range 31 {
		files[fmt.Sprint(i)] = pseudo(uint64(i), 1+i*7%23)
	}
	dir := folder(t, files)
	for _, packing := range []bool{true, false} {
		o := textOptions(8, dir+"/*")
		o.Packing = packing
		d := open(t, o).Train
		want := steps(t, d, Share{World: 1, MicroBatch: 12, GradAccum: 1}, 0, 9)
		if reflect.DeepEqual(want[0], want[1]) {
			t.Fatal("all steps are the same")
		}
		for _, s := range []Share{
			{World: 1, MicroBatch: 3, GradAccum: 4}, {World: 2, MicroBatch: 6, GradAccum: 1},
			{World: 3, MicroBatch: 4, GradAccum: 1}, {World: 4, MicroBatch: 1, GradAccum: 3},
			{World: 12, MicroBatch: 1, GradAccum: 1}, {World: 2, MicroBatch: 2, GradAccum: 3},
		} {
			if got := steps(t, d, s, 0, 9); !reflect.DeepEqual(got, want) {
				t.Errorf("packing %v, %+v: the steps differ from those of one rank", packing, s)
			}
			// A run that starts in mid-epoch goes on as if it had never stopped.
			if got := steps(t, d, s, 4, 9); !reflect.DeepEqual(got, want[4:]) {
				t.Errorf("packing %v, %+v: steps 4 to 8 differ after a resume", packing, s)
			}
		}
	}
}

// Steps may be asked for in any order, and again.
func TestStepJumps(t *testing.T) {
	d := newSynthetic(Options{SeqLen: 4, Vocab: 50}, "train", 40)
	want := steps(t, d, Share{World: 1, MicroBatch: 2, GradAccum: 2}, 0, 10)
	l, err := NewLoader(d, 9, Share{World: 1, MicroBatch: 2, GradAccum: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tokens, targets := make([]int32, 8), make([]int32, 8)
	for _, k := range []int{5, 5, 6, 0, 9, 8, 1, 2} {
		if _, err := l.Step(context.Background(), k); err != nil {
			t.Fatal(err)
		}
		var got []string
		for m := range 2 {
			l.Micro(m, tokens, targets)
			for b := 0; b < 8; b += 4 {
				got = append(got, fmt.Sprint(tokens[b:b+4], targets[b:b+4]))
			}
		}
		slices.Sort(got)
		if !reflect.DeepEqual(got, want[k]) {
			t.Errorf("step %d: got %s, want %s", k, got, want[k])
		}
	}
}

func TestLoaderAllocatesNothing(t *testing.T) {
	dir := folder(t, map[string]string{"a": pseudo(1, 5000), "t": encode(make([]int32, 5000), 2)})
	tokensOptions := textOptions(16, dir+"/t")
	tokensOptions.Format = "tokens"
	for _, o := range []Options{textOptions(16, dir+"/a"), tokensOptions} {
		d := open(t, o).Train
		l, err := NewLoader(d, 1, Share{World: 2, MicroBatch: 4, GradAccum: 2})
		if err != nil {
			t.Fatal(err)
		}
		tokens, targets := make([]int32, 64), make([]int32, 64)
		k := 0
		n := testing.AllocsPerRun(100, func() {
			if _, err := l.Step(context.Background(), k); err != nil {
				t.Fatal(err)
			}
			l.Micro(0, tokens, targets)
			l.Micro(1, tokens, targets)
			k++
		})
		if n != 0 {
			t.Errorf("%s: %v allocations a step", o.Format, n)
		}
		l.Close()
	}
}

// blocked is a dataset whose reads wait for a signal.
type blocked struct {
	Dataset
	enter, leave chan struct{}
	err          error
}

func (b *blocked) Read(int, []int32, []int32) (int, error) {
	b.enter <- struct{}{}
	<-b.leave
	return 0, b.err
}

// A reader that hangs is left when the context ends; one that fails ends the
// step with its error; a closed loader says so.
func TestLoaderEnds(t *testing.T) {
	d := &blocked{newSynthetic(Options{SeqLen: 4, Vocab: 50}, "train", 40), make(chan struct{}, 1), make(chan struct{}), errors.New("bad disk")}
	l, err := NewLoader(d, 1, Share{Rank: 1, World: 2, MicroBatch: 1, GradAccum: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("asked to stop"))
	_, err = l.Step(ctx, 3)
	wantError(t, err, "wait for the data of step 3 on rank 1", "asked to stop")
	<-d.enter
	close(d.leave)
	_, err = l.Step(context.Background(), 3)
	wantError(t, err, "bad disk", "step 3 on rank 1")
	l.Close()
	l.Close()
	if _, err := l.Step(context.Background(), 3); !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
}

func TestTooFewSequencesForABatch(t *testing.T) {
	d := newSynthetic(Options{SeqLen: 4, Vocab: 50}, "train", 23)
	_, err := NewLoader(d, 1, Share{World: 2, MicroBatch: 4, GradAccum: 3})
	wantError(t, err, "23 sequences", "takes 24", "train.micro_batch 4", "train.grad_accum 3", "2 ranks", "data.seq_len")
	_, err = NewLoader(d, 1, Share{Rank: 2, World: 2, MicroBatch: 4, GradAccum: 1})
	wantError(t, err, "rank 2 of 2")
}

// Over all ranks, an evaluation reads a fixed list, each sequence once, and all
// ranks read as many micro-batches.
func TestEvaluationCountsEachSequenceOnce(t *testing.T) {
	d := newSynthetic(Options{SeqLen: 4, Vocab: 5000}, "eval", 50)
	for _, n := range []int{1, 7, 24, 49, 50, 0, 51} {
		var want []string
		for _, s := range []Share{{World: 1, MicroBatch: 1}, {World: 1, MicroBatch: 8}, {World: 2, MicroBatch: 3}, {World: 7, MicroBatch: 4}} {
			var got []string
			targetsSeen, batches := 0, 0
			for s.Rank = range s.World {
				e, err := NewEvaluation(d, n, s)
				if err != nil {
					t.Fatal(err)
				}
				batches = e.Batches()
				if want := min(50, max(n, 0)); want > 0 && e.Len() != want {
					t.Errorf("%d sequences, want %d", e.Len(), want)
				}
				tokens, targets := make([]int32, 4*s.MicroBatch), make([]int32, 4*s.MicroBatch)
				for m := range batches {
					count, err := e.Read(m, tokens, targets)
					if err != nil {
						t.Fatal(err)
					}
					targetsSeen += count
					for b := 0; b < len(targets); b += 4 {
						if targets[b] != Ignore {
							got = append(got, fmt.Sprint(tokens[b:b+4], targets[b:b+4]))
						} else if slices.Max(targets[b:b+4]) != Ignore {
							t.Error("a sequence that counts in part")
						}
					}
				}
			}
			slices.Sort(got)
			if want == nil {
				want = got
			}
			if !reflect.DeepEqual(got, want) || targetsSeen != 4*len(want) {
				t.Errorf("n %d, %+v: %d targets and\n%s\nwant\n%s", n, s, targetsSeen, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
}
