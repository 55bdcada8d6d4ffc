package dma

import "testing"

// Emulate makes the kernels of all teams run on the CPU until the test ends. GPUs are
// fake, and calls return when they are done on their rank.
func Emulate(t testing.TB) {
	t.Helper()
	e := newEmulator(t)
	before := newMachine
	newMachine = func() machine { return e }
	t.Cleanup(func() { newMachine = before })
}

// Stall makes the kernels of all teams, which Emulate has made run, stand still from now on.
// goOn makes them run, and the caller wait for them; each rank calls it.
func Stall(t testing.TB) (goOn func()) {
	e := newMachine().(*emulator)
	e.stalled.Store(true)
	return func() {
		for {
			select {
			case run := <-e.waiting:
				run()
			default:
				return
			}
		}
	}
}

// Mute makes the kernels of all teams, which Emulate has made run, say no more when they
// begin and end.
func Mute(t testing.TB) { newMachine().(*emulator).mute.Store(true) }
