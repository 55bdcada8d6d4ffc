package train

import (
	"fmt"
	"math"
)

// laggard is the rank that worked longest on a step, while the others waited for it.
// The step's own times do not show it: those of ranks that wait for each other are
// about the same.
type laggard struct {
	rank int
	by   float64 // longer than the mean of the others, in milliseconds
}

// work is what a rank spent on a step without waiting for others, in milliseconds.
func (t times) work() float64 { return max(t.step-t.exposed, 0) }

// rankBits hold the rank in a work that says whose it is: the maximum of such numbers
// is that of the slowest, and a float64 holds an hour in microseconds beside it.
const rankBits = 20

func tagged(work float64, rank int) float64 {
	return math.Floor(work*1e3)*(1<<rankBits) + float64(rank)
}

// laggardOf reads the largest tagged work of n ranks, whose works are mean on average.
func laggardOf(largest, mean float64, n int) laggard {
	micros, rank := math.Floor(largest/(1<<rankBits)), math.Mod(largest, 1<<rankBits)
	if n == 1 {
		return laggard{}
	}
	most := micros / 1e3
	return laggard{int(rank), max(most-(float64(n)*mean-most)/float64(n-1), 0)}
}

// laggards counts in how many steps each rank was the slowest.
type laggards struct {
	steps []int
	by    []float64 // sums, in milliseconds
}

func (l *laggards) add(n int, slow laggard) {
	if l.steps == nil {
		l.steps, l.by = make([]int, n), make([]float64, n)
	}
	l.steps[slow.rank]++
	l.by[slow.rank] += slow.by
}

const (
	oftenSlow  = 2. / 3 // of the steps
	noticeably = 0.1    // of a step's time
)

// line names the rank that holds the others up: the slowest one in most steps, by
// an amount that matters in a step that takes stepMS. It is empty where there is none.
func (l *laggards) line(stepMS float64, host func(rank int) string) string {
	total := 0
	for _, n := range l.steps {
		total += n
	}
	for rank, n := range l.steps {
		by := l.by[rank] / float64(max(n, 1))
		if len(l.steps) > 1 && float64(n) >= oftenSlow*float64(total) && by >= noticeably*stepMS {
			return fmt.Sprintf("rank %d on %s was the slowest in %.0f %% of the steps, by %.1f ms: the others waited for it",
				rank, host(rank), 100*float64(n)/float64(total), by)
		}
	}
	return ""
}
