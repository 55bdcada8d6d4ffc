// Package testenv holds what tests of every package share: where the reference
// data lies, and skips that can be turned into failures.
package testenv

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Skip skips t and says why, unless the environment variable GORUN_REQUIRE (a
// comma-separated list such as "gpu,netns,data") names feature: then the test
// fails, for whoever set it believes that the feature is there.
func Skip(t testing.TB, feature, why string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("GORUN_REQUIRE"), ","), feature) {
		t.Fatalf("GORUN_REQUIRE asks for %q, but: %s", feature, why)
	}
	t.Skipf("needs %s: %s", feature, why)
}

// Data returns the path of a reference file, given relative to the folder that
// GORUN_TESTDATA names (default: ../shared/testdata beside the module). The test
// is skipped where the file is absent; the feature's name is "data".
func Data(t testing.TB, rel string) string {
	t.Helper()
	root := os.Getenv("GORUN_TESTDATA")
	if root == "" {
		_, self, _, _ := runtime.Caller(0)
		root = filepath.Join(filepath.Dir(self), "..", "..", "..", "shared", "testdata")
	}
	path := filepath.Join(root, rel)
	if _, err := os.Stat(path); err != nil {
		Skip(t, "data", err.Error()+" (set GORUN_TESTDATA)")
	}
	return path
}
