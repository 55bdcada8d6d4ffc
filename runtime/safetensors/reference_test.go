package safetensors

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

// reread reads a file with the reference library and writes it again with it.
const reread = `
import sys
from safetensors import deserialize, serialize
types = {"F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "I64": "int64", "U8": "uint8"}
tensors = deserialize(open(sys.argv[1], "rb").read())
open(sys.argv[2], "wb").write(serialize({n: {"dtype": types[t["dtype"]], "shape": t["shape"], "data": bytes(t["data"])} for n, t in tensors}, {"format": "pt"}))
`

// What the reference library writes of the tensors that it reads from our file is
// our file: header, order, padding and data.
func TestReferenceLibraryAgrees(t *testing.T) {
	python := testenv.Python(t, "safetensors")
	dir := t.TempDir()
	ours, theirs := filepath.Join(dir, "ours"), filepath.Join(dir, "theirs")
	tensors, _ := everyType()
	must(t, WriteFile(ours, tensors, nil))
	testenv.RunPython(t, python, nil, "-c", reread, ours, theirs)
	a, err := os.ReadFile(ours)
	must(t, err)
	b, err := os.ReadFile(theirs)
	must(t, err)
	if !bytes.Equal(a, b) {
		i := 0
		for i < min(len(a), len(b)) && a[i] == b[i] {
			i++
		}
		t.Errorf("files of %d and %d bytes differ from byte %d on:\nours   %.80q\ntheirs %.80q", len(a), len(b), i, a[i:], b[i:])
	}
}
