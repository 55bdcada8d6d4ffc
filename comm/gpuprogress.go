package comm

import (
	"time"

	"github.com/gorun-dev/gorun/comm/dma"
	"github.com/gorun-dev/gorun/runtime/cuda"
)

// gpuProgress tells how far a call is that was enqueued on a GPU. It does not wait. Errors are
// those of the call's stream.
type gpuProgress interface {
	began() (bool, error)
	ended() (bool, error)
	// took is the GPU's time from the begin of a call that has ended to its end.
	took() (time.Duration, error)
	release()
}

// byEvents tells it by the places before and behind the call.
type byEvents struct{ start, end *cuda.Event }

func (p byEvents) began() (bool, error)         { return p.start.Reached() }
func (p byEvents) ended() (bool, error)         { return p.end.Reached() }
func (p byEvents) took() (time.Duration, error) { return p.end.Since(p.start) }

func (p byEvents) release() {
	p.start.Release()
	p.end.Release()
}

// byMark tells it by what the call's kernels say.
type byMark struct {
	dma.Mark
	stream *cuda.Stream
	asked  time.Time // when the driver was last asked, see ended
}

// askEvery is how often that is.
const askEvery = time.Millisecond

func (p *byMark) began() (bool, error) { return p.Began() }

// ended asks the driver too, now and then: of an error kernels say nothing, and a mark of
// many thousand calls ago tells nothing any more.
func (p *byMark) ended() (there bool, err error) {
	there, err = p.Ended()
	if there || err != nil || time.Since(p.asked) < askEvery {
		return there, err
	}
	if !p.asked.IsZero() { // most calls have ended by the second look
		there, err = p.stream.Query()
	}
	p.asked = time.Now()
	return there, err
}

func (p *byMark) took() (time.Duration, error) { return p.Took(), nil }
func (p *byMark) release()                     {}
