//go:build !race

package shm

const raceDetector = false
