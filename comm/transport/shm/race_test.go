//go:build race

package shm

const raceDetector = true
