// Package monitor shows a run to those who watch it: event files for TensorBoard, a
// page for Prometheus, and a plot of the loss at the end.
package monitor

import "time"

// Point is figures of one step. A name is a path as TensorBoard groups them, such as
// train/loss.
type Point struct {
	Step   int
	Time   time.Time
	Values []Value
}

// Value is a figure. One that is not finite is passed on as it is.
type Value struct {
	Name string
	V    float64
}
