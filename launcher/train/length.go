package train

import (
	"fmt"
	"strings"

	"github.com/gorun-dev/gorun/launcher/config"
)

// sequencesOf is how many the whole job reads where epochs end it, each of n
// sequences; 0: max_steps does.
func sequencesOf(c *config.Config, n int) int64 {
	return int64(portion(c.Train.Epochs, n))
}

// steps is the length of the whole job: max_steps, or what the epochs come to. Their
// sequences that fill no batch are a step too.
func steps(c *config.Config, sequences, batch int) int {
	n := c.Train.MaxSteps
	if c.Train.Epochs > 0 {
		byEpochs := int((sequencesOf(c, sequences) + int64(batch) - 1) / int64(batch))
		if n == 0 || byEpochs < n {
			n = byEpochs
		}
	}
	return n
}

// epochs is how often a run reads the data, of which sequences are an epoch.
func epochs(c *config.Config, steps, batch, sequences int) float64 {
	read := int64(steps) * int64(batch)
	if end := sequencesOf(c, sequences); end > 0 {
		read = min(read, end)
	}
	return float64(read) / float64(sequences)
}

// lengthOf says how long a job of total steps is, what ends it, and what its last step
// holds where that is less than the others.
func lengthOf(c *config.Config, total, batch, sequences int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d steps", total)
	if c.Data.Format == "synthetic" {
		return b.String() // which has no epochs
	}
	fmt.Fprintf(&b, ", %.3f epochs", epochs(c, total, batch, sequences))
	end := sequencesOf(c, sequences)
	left := end - int64(total-1)*int64(batch)
	switch {
	case end > 0 && left > int64(batch):
		fmt.Fprintf(&b, " (train.max_steps comes before the end of train.epochs, %g)", c.Train.Epochs)
	case c.Train.MaxSteps > total:
		fmt.Fprintf(&b, " (train.epochs, %g, end before train.max_steps, %d)", c.Train.Epochs, c.Train.MaxSteps)
	}
	if end > 0 && left < int64(batch) {
		fmt.Fprintf(&b, "; the last step holds %d of %d sequences", left, batch)
	}
	return b.String()
}
