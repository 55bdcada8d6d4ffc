package train

import (
	"fmt"
	"slices"
	"testing"
)

// BenchmarkStrategies compares the strategies with plain data parallelism, in turns, on
// two ranks with a thread each: the quickest tenth of the steps of each, over all turns,
// as a part of ddp's, for others may use the machine; and the medians. Above 1 is slower.
//
//	go test ./launcher/train -run '^$' -bench Strategies -benchtime 5x -v
func BenchmarkStrategies(b *testing.B) {
	for _, micro := range []int{1, 4} {
		b.Run(fmt.Sprintf("accumulate=%d", micro), func(b *testing.B) {
			strategies := []string{"ddp", "zero1", "zero2", "zero3"}
			times := map[string][]stepRecord{}
			for range b.N {
				for _, strategy := range strategies {
					dir := b.TempDir()
					trainDirect(b, 2, nil, "output="+dir, "parallel.strategy="+strategy, "model.hidden=128", "model.layers=4", "model.vocab=2048",
						"data.seq_len=64", "train.max_steps=20", fmt.Sprint("train.micro_batch=", 4/micro), fmt.Sprint("train.grad_accum=", micro),
						"eval.every=0", "checkpoint.every=0", "checkpoint.final=false")
					times[strategy] = append(times[strategy], readSteps(b, dir)[2:]...)
				}
			}
			quantile := func(strategy string, q float64, ms func(stepRecord) float64) float64 {
				var list []float64
				for _, r := range times[strategy] {
					list = append(list, ms(r))
				}
				slices.Sort(list)
				return list[int(q*float64(len(list)))]
			}
			step := func(r stepRecord) float64 { return r.StepMS }
			for _, s := range strategies {
				median := func(ms func(stepRecord) float64) float64 { return quantile(s, 0.5, ms) }
				b.Logf("%-5s  quick %6.1f ms, median %6.1f ms a step: forward %.1f, backward %.1f, exposed communication %.1f, optimizer %.1f",
					s, quantile(s, 0.1, step), median(step), median(func(r stepRecord) float64 { return r.ForwardMS }),
					median(func(r stepRecord) float64 { return r.BackwardMS }), median(func(r stepRecord) float64 { return r.ExposedMS }),
					median(func(r stepRecord) float64 { return r.OptimMS }))
				if s != "ddp" {
					b.ReportMetric(quantile(s, 0.1, step)/quantile("ddp", 0.1, step), s+"/ddp")
				}
			}
		})
	}
}
