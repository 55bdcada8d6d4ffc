package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// suspicious is how long a process is stopped, or cannot be interrupted, before
// that explains why its peers fail.
const suspicious = 3 * time.Second

// culprit names the worker that broke an attempt. first is the failure that was
// reported first, workers what the agents saw of each worker. Peers notice a death
// within milliseconds, so who complains first need not be the cause: a process
// that was killed counts before one that is stopped, that before one that failed
// without blaming another or complaining of a connection, and that before one that
// is merely blamed. Among equals the one counts that most others blame, then the
// first.
func culprit(first *Failure, workers []Failure) *Failure {
	if first == nil || first.Kind != WorkerFailed || !first.Started {
		return first
	}
	if !slices.ContainsFunc(workers, func(w Failure) bool { return w.Rank == first.Rank }) {
		workers = append([]Failure{*first}, workers...) // its node is lost by now
	}
	blames := map[int]int{}
	for _, w := range workers {
		for _, r := range w.Blames {
			blames[r]++
		}
	}
	// Negative where the first is the likelier one.
	likelier := func(a, b Failure) int {
		return cmp.Or(
			cmp.Compare(a.distance(blames[a.Rank]), b.distance(blames[b.Rank])),
			cmp.Compare(blames[b.Rank], blames[a.Rank]),
			cmp.Compare(differs(a.Rank, first.Rank), differs(b.Rank, first.Rank)),
			a.At.Compare(b.At),
		)
	}
	chosen := slices.MinFunc(workers, likelier)
	return chosen.accused(first, workers)
}

// distance is how far a worker is from being the cause, 0 for the surest sign,
// where so many others blame it.
func (f *Failure) distance(blamed int) int {
	switch {
	case f.How == Failed && f.Signal == "SIGKILL":
		return 0
	case f.How == Stopped && (blamed > 0 || f.StateFor >= suspicious):
		return 1
	case f.How == Failed && len(f.Blames) == 0 && !f.complains():
		return 2
	case blamed > 0 && len(f.Blames) == 0:
		return 3
	case blamed > 0:
		return 4
	case f.How == Failed:
		return 5
	}
	return 6
}

// complaints are what libraries say whose peer is gone, in lower case: package comm
// in a program that records no blame, gloo, NCCL, MPI and the kernel's own words.
var complaints = []string{
	"connection ended without a goodbye",
	"connection closed by peer", "connection reset by peer", "broken pipe", "remote process exited", "remote peer",
	"socket closed", "unexpected eof",
}

// complains says that a worker which names nobody has failed over a connection.
func (f *Failure) complains() bool {
	text := strings.ToLower(f.Message)
	return slices.ContainsFunc(complaints, func(c string) bool { return strings.Contains(text, c) })
}

func differs(a, b int) int {
	if a == b {
		return 0
	}
	return 1
}

// accused completes the record of the worker that is at fault: where it did not
// fail itself, with the words of one that complains of it.
func (f *Failure) accused(first *Failure, workers []Failure) *Failure {
	out := *f
	switch out.How {
	case Stopped:
		out.Cause = fmt.Sprintf("%s for %s", out.State, out.StateFor.Round(time.Second))
	case Ended:
		out.Cause = "exit status 0"
	case Told:
		out.Cause = out.State
	}
	if out.How != Failed {
		out.Message = ""
		out.Code = first.Code
		for _, w := range workers {
			if slices.Contains(w.Blames, out.Rank) || w.Rank == first.Rank && w.Rank != out.Rank && out.Message == "" {
				out.Message = w.Message
			}
		}
	}
	out.Notes = nil
	for _, w := range workers {
		if note := w.note(); note != "" && w.Rank != out.Rank {
			out.Notes = append(out.Notes, note)
		}
	}
	return &out
}

// note is what is remarkable about a worker that is not at fault.
func (f *Failure) note() string {
	switch {
	case f.How == Ended:
		return fmt.Sprintf("rank %d on host %s had ended before with exit status 0", f.Rank, f.Host)
	case f.State != "" && f.StateFor >= suspicious:
		return fmt.Sprintf("rank %d on host %s, pid %d, was %s for %s", f.Rank, f.Host, f.PID, f.State, f.StateFor.Round(time.Second))
	}
	return ""
}
